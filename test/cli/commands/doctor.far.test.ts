// Owns the proof that `tierkv doctor --engine` measures an engine over HTTP alone, and names the change that matters most.
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { FAR_BYTES } from "../../../src/base/limits/tools.ts";
import { farChange, farOutlook } from "../../../src/cli/doctor/far-advice.ts";
import type { FarEngine } from "../../../src/cli/doctor/far-engine.ts";
import { runInside } from "../../support/command-line.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest } from "../../support/vaults.ts";

const MS_PER_TOKEN = 0.5;
const BLOCK_TOKENS = 32;
const METRICS = [
  `vllm:cache_config_info{block_size="${BLOCK_TOKENS}",enable_prefix_caching="True"} 1.0`,
  'vllm:prefix_cache_queries_total{engine="0"} 1000.0',
  'vllm:prefix_cache_hits_total{engine="0"} 2.5e+02',
].join("\n");

/** Answers as vLLM does, and takes its time for each token, and `smallMs` for the smaller of the uploads. */
async function openEngine(smallMs = 0): Promise<{ url: string; computed: number[] }> {
  const computed: number[] = [];
  const held = new Set<string>();
  const answer = async (path: string, type: string, body: string): Promise<[number, string]> => {
    if (path === "/metrics") return [200, METRICS];
    if (path === "/v1/models") {
      return [200, JSON.stringify({ data: [{ id: "m", max_model_len: 1025 }] })];
    }
    if (type !== "application/json") {
      if (body.length === FAR_BYTES) await sleep(smallMs);
      return [400, "{}"];
    }
    const { prompt } = JSON.parse(body) as { prompt: number[] };
    // Its own cache holds what it computed, but for the last block.
    const left = held.has(body) ? BLOCK_TOKENS : prompt.length;
    held.add(body);
    computed.push(left);
    await sleep(left * MS_PER_TOKEN);
    return [200, "{}"];
  };
  const server = createServer((request, response) => {
    void text(request)
      .then((body) => answer(request.url ?? "", request.headers["content-type"] ?? "", body))
      .then(([code, said]) => response.writeHead(code).end(said));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  closeAfterTest({
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`, computed };
}

/** 8 kB a token. */
function writeModel(): string {
  const path = join(testDirectory(), "config.json");
  const heads = { num_attention_heads: 8, num_key_value_heads: 2, head_dim: 64, hidden_size: 512 };
  const model = { model_type: "llama", torch_dtype: "float32", num_hidden_layers: 8, ...heads };
  writeFileSync(path, JSON.stringify(model));
  return path;
}

test("an engine's pace and the way to it are measured, and what it holds itself is told", async () => {
  const { url, computed } = await openEngine();
  const args = ["doctor", "--engine", url, "--model", writeModel()];
  const { exitCode, stdout } = await runInside([...args, "--json"]);
  const { helps, engine, prompts } = JSON.parse(stdout) as {
    helps: boolean;
    engine: FarEngine;
    prompts: { tokens: number; ms: number; restoreMs: number }[];
  };
  expect([exitCode, helps]).toEqual([0, true]);
  expect(engine).toMatchObject({ model: "m", askedTokens: 1000, hitTokens: 250 });
  expect(engine.hasPrefixCache).toBe(true);
  // The first warms up. Each is sent again, three times, since a restore leaves as much as the own cache.
  const again = Array<number>(3).fill(BLOCK_TOKENS);
  expect(computed).toEqual([256, ...[256, 512, 1024].flatMap((tokens) => [tokens, ...again])]);
  expect(prompts.map(({ tokens }) => tokens)).toEqual([256, 512, 1024]);
  for (const { tokens, ms, restoreMs } of prompts) {
    expect(ms).toBeGreaterThan(tokens * MS_PER_TOKEN - 1);
    expect(restoreMs).toBeGreaterThan(BLOCK_TOKENS * MS_PER_TOKEN - 1);
  }
});

test("a link whose larger request took less time is still measured, from below", async () => {
  const { url } = await openEngine(1_000);
  const { stdout } = await runInside(["doctor", "--engine", url, "--json"]);
  const { engine } = JSON.parse(stdout) as { engine: FarEngine };
  expect(engine.bytesPerS).toBeGreaterThan(0);
});

test("what is no engine is said to be none", async () => {
  const { exitCode, stderr } = await runInside(["doctor", "--engine", "http://127.0.0.1:1"]);
  expect([exitCode, stderr]).toEqual([
    1,
    expect.stringMatching(
      /no vLLM answers at http:\/\/127\.0\.0\.1:1: .*; start it there, or correct the address/,
    ),
  ]);
});

const ENGINE: FarEngine = {
  model: "m",
  longestTokens: 1024,
  hasPrefixCache: true,
  askedTokens: 0,
  hitTokens: 0,
  blockTokens: 16,
  roundTripMs: 1,
  bytesPerS: 125e6,
  paces: [{ tokens: 1000, ms: 101, restMs: 0 }],
};

test.each<[string, Partial<FarEngine>, number | null, string]>([
  ["no prefix cache", { hasPrefixCache: false }, 100, "--enable-prefix-caching"],
  ["an unknown model", {}, null, "--model"],
  ["an unmeasured way", { bytesPerS: null }, 100, "could not be measured"],
  // 40 MB at 1 Gb/s take 320 ms; in 100 ms go 3.2 Gb/s.
  ["a slow link", {}, 40_000, "a faster link: from 3.2 Gb/s on"],
  ["a link that is most of it", {}, 10_000, "a link 10 times as fast"],
  ["a link that is fast enough", {}, 100, "tierKV on the engine's machine, and a vault here"],
  [
    "a prompt that costs no more than an answer",
    { paces: [{ tokens: 1000, ms: 101, restMs: 100 }] },
    100,
    "none: 1000 tokens are computed as fast",
  ],
  ["an own cache that holds all", { askedTokens: 100, hitTokens: 99 }, 100, "none"],
])("of %s the change that matters most is said", (_, given, bytesPerToken, said) => {
  const engine = { ...ENGINE, ...given };
  const bytesOf = bytesPerToken === null ? null : (tokens: number) => tokens * bytesPerToken;
  expect(farChange(engine, farOutlook(engine, bytesOf))).toContain(said);
});
