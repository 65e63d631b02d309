// Owns the proof that `tierkv plan` says what a model weighs, what a trace would bring back, and what a real sidecar has seen.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeEach, expect, test } from "vitest";
import { runInside } from "../../support/command-line.ts";
import { openRestored } from "../../support/pages.ts";
import { openScene } from "../../support/scene.ts";
import { testDirectory } from "../../support/sidecars.ts";

const LLAMA_8B = {
  _name_or_path: "meta-llama/Llama-3.1-8B",
  model_type: "llama",
  num_hidden_layers: 32,
  hidden_size: 4096,
  num_attention_heads: 32,
  num_key_value_heads: 8,
};

let dir = "";

beforeEach(() => {
  dir = join(testDirectory(), "model");
  mkdirSync(dir, { recursive: true });
  writeFileSync(join(dir, "config.json"), JSON.stringify(LLAMA_8B));
  writeFileSync(join(dir, "exact.toml"), "turbo_quant = false\n");
});

const exact = (...args: string[]): string[] => [
  "plan",
  "--config",
  join(dir, "exact.toml"),
  "--model",
  dir,
  ...args,
];

test("a model from its folder: a token, prompts, their travel, and what vaults hold", async () => {
  const { exitCode, stdout } = await runInside(exact());
  expect(exitCode).toBe(0);
  expect(stdout).toContain("meta-llama/Llama-3.1-8B: 32 full layers; 16-bit values");
  expect(stdout).toContain(
    "a token: 131 kB (128.0 KiB) in the engine; 131 kB (128.0 KiB) in a vault",
  );
  // 131,072 tokens of 131,072 bytes: 17.2 GB, 137.4 Gbit.
  expect(stdout).toMatch(/131072 +17\.2 GB +17\.2 GB +2\.3 min +14 s/);
  expect(stdout).toMatch(/8\.0 GB +61035 +1\n/);
  const lossy = join(dir, "int8.toml");
  writeFileSync(lossy, "[turbo_quant]\nenabled = true\n");
  const asked = ["plan", "--config", lossy, "--model", join(dir, "config.json")];
  const int8 = await runInside([...asked, "--vault", "24GB"]);
  expect(int8.stdout).toMatch(/24\.0 GB +349650 +10\n$/);
});

test("a trace: hit rate by vault size, and seconds saved where the engine's pace is given", async () => {
  const trace = join(dir, "trace.jsonl");
  const ids = Array.from({ length: 20 }, (_, at) => at);
  const request = (hash_ids: number[]): string =>
    JSON.stringify({ timestamp: 0, input_length: 10_240, output_length: 1, hash_ids });
  const other = request(ids.map((id) => 1000 + id));
  writeFileSync(trace, [request(ids), other, request(ids), ""].join("\n"));
  const args = exact("--trace", trace, "--prefill", "1000", "--vault", "1GiB", "--json");
  const { stdout } = await runInside(args);
  const { models } = JSON.parse(stdout) as {
    models: { forecast: { sizes: { hitTokens: number; savedS: number[] }[] } }[];
  };
  const [small, endless] = models[0]!.forecast.sizes;
  // 1 GiB holds 8192 tokens; all that was asked since takes 20,480.
  expect(small).toEqual({ hitTokens: 0, savedS: [0, 0] });
  expect(endless?.hitTokens).toBe(10_240);
  const travelS = (10_240 * 131_072 * 8) / 1e9;
  expect(endless?.savedS[0]).toBe(0);
  expect(endless?.savedS[1]).toBeCloseTo(10.24 - travelS / 10, 9);
  const shown = await runInside(exact("--trace", trace));
  expect(shown.stdout).toContain("3 requests, 30720 prompt tokens, 20480 of them different");
  expect(shown.stdout).toMatch(/endless +33\.3 % +10240/);
  expect(shown.stdout).toContain("add --prefill");
});

test("a running engine: what it stores a token, what its prompts cost, and the blocks it asked for again", async () => {
  const { sidecar } = await openRestored();
  const { exitCode, stdout } = await runInside(["plan", "--socket", sidecar.socketPath, "--json"]);
  expect(exitCode).toBe(0);
  const result = JSON.parse(stdout) as {
    models: { name: string; tokenBytes: number; prompts: { tokens: number; computeS: number }[] }[];
    reuse: { share: number }[];
  };
  const { footprint, model } = sidecar.status().engines[0]!;
  expect(result.models[0]).toMatchObject({ name: model, tokenBytes: footprint!.tokenBytes });
  expect(footprint!.tokenBytes).toBeGreaterThan(0);
  // The scene's engine computes a token a second.
  const [first] = result.models[0]!.prompts;
  expect(first!.computeS / first!.tokens).toBeGreaterThan(0.9);
  // No longer than the engine takes.
  const { tokens: longest } = sidecar.status().engines[0]!.forecast.at(-1)!;
  expect(result.models[0]!.prompts.at(-1)!.tokens).toBe(Math.min(longest, 131_072));
  const shown = await runInside(["plan", "--socket", sidecar.socketPath]);
  expect(shown.stdout).toContain(`${model}: a running engine`);
  expect(shown.stdout).toMatch(/a token: .* in a vault$/m);
  const { sidecar: fresh } = await openScene();
  const before = await runInside(["plan", "--socket", fresh.socketPath]);
  expect(before.stdout).toMatch(/a token: .* in a vault at most: .* after its first restore$/m);
});

interface StoresPlanned {
  models: {
    stores: {
      bytes: number;
      replicas: number;
      rows: { primaries: number; nodes: number }[];
    } | null;
  }[];
}

test("Valkey's nodes and the bucket for the same records, by size and for all of a trace", async () => {
  const args = ["--vault", "500GB", "--node", "64GB", "--replicas", "2"];
  const { exitCode, stdout } = await runInside(exact(...args));
  expect(exitCode).toBe(0);
  expect(stdout).toContain("A record of 16 tokens 2.1 MB, in Valkey 2.6 MB. Each primary has 2");
  // 500 GB take 625 GB there.
  expect(stdout).toMatch(/500 GB +3814697 +625 GB +10 +30 +500 GB +34060\n/);
  const trace = join(dir, "trace.jsonl");
  const line = { timestamp: 0, input_length: 1024, output_length: 1, hash_ids: [1, 2] };
  writeFileSync(trace, JSON.stringify(line));
  const planned = await runInside(exact(...args, "--trace", trace, "--json"));
  const { models } = JSON.parse(planned.stdout) as StoresPlanned;
  expect(models[0]?.stores).toMatchObject({
    bytes: 64e9,
    replicas: 2,
    rows: [
      { primaries: 10, nodes: 30 },
      { primaries: 3, nodes: 9, tokens: 1024, bytes: 1024 * 131_072 },
    ],
  });
  const without = await runInside(exact("--vault", "500GB", "--json"));
  expect((JSON.parse(without.stdout) as StoresPlanned).models[0]?.stores).toBeNull();
  const larger = await runInside(exact("--node", "64GB", "--engine-block", "128"));
  expect(larger.stdout).toContain("A record of 128 tokens 16.8 MB");
});

test("Valkey's nodes for what a running engine keeps, by the records that it has", async () => {
  const { sidecar } = await openRestored();
  const args = ["plan", "--socket", sidecar.socketPath, "--node", "1GB", "--vault", "1GB"];
  const { exitCode, stdout } = await runInside(args);
  expect(exitCode).toBe(0);
  const [group] = sidecar.status().engines[0]!.groups;
  expect(stdout).toContain(`A record of ${group!.tokens} tokens `);
  const refused = await runInside([...args, "--engine-block", "16"]);
  expect(refused.stderr).toContain("--engine-block 16: a running engine tells its blocks");
});

test.each([
  [["--links", "fast"], "--links fast: expected rates in Gb/s such as 1,10"],
  [["--vault", "much"], "--vault much: expected a size like 24GB"],
  [["--node", "much"], "--node much: expected a size like 24GB"],
  [["--node", "1GB", "--replicas", "9"], "--replicas 9: expected a whole number from 0 to 5"],
  [["--replicas", "1"], "--replicas 1: add --node with the memory of a Valkey node"],
  [["--engine-block", "16"], "--engine-block 16: add --node"],
  [["--node", "1GB", "--engine-block", "0"], "--engine-block 0: expected a whole number above 0"],
  [["--prefill", "-1"], "--prefill -1: expected a whole number above 0"],
  [["--trace", "/no/such.jsonl"], "/no/such.jsonl: cannot be read: it does not exist"],
])("%j is refused in one line", async (more, reason) => {
  const { exitCode, stdout, stderr } = await runInside(exact(...more));
  expect([exitCode, stdout]).toEqual([2, ""]);
  expect(stderr).toMatch(/^tierkv: [^\n]+\n$/);
  expect(stderr).toContain(reason);
});

test("without a sidecar and without a model it says what is missing", async () => {
  const { exitCode, stderr } = await runInside(["plan", "--socket", join(dir, "no.sock")]);
  expect(exitCode).toBe(1);
  expect(stderr).toContain("SIDECAR_DOWN");
});
