// Owns the proof of `tierkv fidelity`: pieces of text, the verdict, and what it says of an engine it cannot measure.
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { CERTIFIED_PROMPTS_MIN } from "../../../src/base/limits/codec.ts";
import { FIDELITY_AT_ONCE, FIDELITY_PROMPT_CHARS } from "../../../src/base/limits/tools.ts";
import { eachAtOnce } from "../../../src/cli/at-once.ts";
import { certifiedText, judge, piecesOf } from "../../../src/cli/commands/fidelity.ts";
import type { Answered } from "../../../src/extras/fidelity/engine-asker.ts";
import type { Certificate } from "../../../src/sidecar/save/certificate.ts";
import { readCertificates } from "../../../src/sidecar/save/certificates.ts";
import { codecId, LOSSY } from "../../../src/sidecar/save/codecs.ts";
import { identify } from "../../support/certificates.ts";
import { runInside } from "../../support/command-line.ts";
import { FakeEngine, makeGroup } from "../../support/shim-client.ts";
import { openSidecar, testDirectory } from "../../support/sidecars.ts";

function answered(share: number, restoredTokens = 0): Answered {
  const likely = { "token_id:1": Math.log(share), "token_id:2": Math.log(0.1) };
  return { tokenIds: [1], steps: [likely], restoredTokens };
}

test("prompts are pieces of the whole text, each beginning elsewhere", () => {
  const text = Array.from({ length: FIDELITY_PROMPT_CHARS * 2 }, (_none, n) => n % 10).join("");
  const pieces = piecesOf(text, 7);
  expect(pieces.map(({ length }) => length)).toEqual(Array(7).fill(FIDELITY_PROMPT_CHARS));
  expect(new Set(pieces.map((piece) => piece.slice(0, 12))).size).toBe(7);
  // The first five of many lie in all quarters of the text.
  const long = Array.from({ length: 40_000 }, (_none, n) =>
    String.fromCodePoint(0x3000 + (n >> 4)),
  );
  const parts = piecesOf(long.join(""), 1000).slice(0, 5);
  const quarters = parts.map((piece) => Math.floor((piece.codePointAt(0)! - 0x3000) / 625));
  expect(new Set(quarters).size).toBe(4);
  expect(() => piecesOf("short", 2)).toThrow(/too few/);
});

test("the verdict is about restored prompts, against the own cache's answers", () => {
  const exact = { computed: answered(0.5), own: answered(0.5) };
  const trio = (restored: Answered) => ({ ...exact, restored });
  const near = judge([trio(answered(0.5001, 128)), trio(answered(0.1))], 1e-4);
  expect(near).toMatchObject({ prompts: 2, restored: 1, restoredTokens: 128, verdict: "within" });
  expect(near.tierkv.answers).toBe(1);
  const far = [1, 2, 3].map((n) => trio(answered(0.4 - n / 100, 128)));
  expect(judge(far, 1e-4).verdict).toBe("beyond");
  expect(() => judge([trio(answered(0.5))], 1e-4)).toThrow(/no prompt was restored/);
});

/** Serves like an engine: restored answers after its cache was emptied, except the first `missed`, by `kld` off the others.
 * Answers `atOnce` requests together, and none before so many wait; refuses more. */
async function openEngine(kld: number, missed: number, atOnce = 1): Promise<string> {
  let isEmptied = false;
  let left = missed;
  const seen = new Set<string>();
  const waiting: (() => void)[] = [];
  const answer = (give: () => void): void => {
    waiting.push(give);
    if (waiting.length === atOnce) for (const each of waiting.splice(0)) each();
  };
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", (part: Buffer) => void (body += part.toString()));
    request.on("end", () => {
      if (request.url === "/reset_prefix_cache") isEmptied = true;
      const { prompt = "" } = JSON.parse(body || "{}") as { prompt?: string };
      if (request.url === "/v1/completions" && !seen.has(prompt)) isEmptied = false;
      seen.add(prompt);
      const isRestored = isEmptied && (request.url !== "/v1/completions" || left-- <= 0);
      const off = isRestored ? Math.sqrt(kld / 2) : 0;
      const step = { "token_id:1": Math.log(0.5 + off), "token_id:2": Math.log(0.5 - off) };
      const answers: Record<string, object> = {
        "/v1/models": { data: [{ id: "m" }] },
        "/reset_prefix_cache": { success: true },
        "/v1/completions": {
          choices: [{ token_ids: [1], logprobs: { top_logprobs: [step] } }],
          kv_transfer_params: { tierkv: { restored_tokens: isRestored ? 128 : 0 } },
        },
      };
      const give = (): void =>
        void response.writeHead(200).end(JSON.stringify(answers[request.url ?? ""] ?? {}));
      if (request.url === "/v1/completions") answer(give);
      else give();
    });
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  onTestFinished(() => void server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** Runs the command with a sidecar of one engine, whose weights are named unless `weights` is empty. */
async function measured(
  kld: number,
  { enabled, weights = "files:m", prompts, missed = 0, dtype = "bf16", atOnce = 1 }: Measured,
): Promise<{ exitCode: number | null; stdout: string; stderr: string; certificates: string }> {
  const certificates = join(testDirectory(), "certificates");
  const set = enabled === undefined ? {} : { enabled };
  const sidecar = await openSidecar({ kv: "auto", certificates, ...set });
  const groups = [makeGroup({ dtype })];
  const engine = await FakeEngine.start(sidecar.socketPath, { groups });
  await identify(engine, weights, enabled === true ? codecId(LOSSY.name) : 0);
  const folder = testDirectory();
  const config = join(folder, "tierkv.toml");
  const lines = ["[sidecar]", `socket = "${sidecar.socketPath}"`, "[codec]"];
  writeFileSync(config, [...lines, `certificates = "${certificates}"`, ""].join("\n"));
  const text = join(folder, "text");
  writeFileSync(text, Array.from({ length: 3000 }, (_none, n) => n).join(" "));
  const line = [
    "fidelity",
    "--engine",
    await openEngine(kld, missed, atOnce),
    "--text",
    text,
    "--json",
  ];
  const most = prompts === undefined ? [] : ["--prompts", String(prompts)];
  const ran = await runInside([...line, ...most, "--config", config]);
  return { ...ran, certificates };
}

interface Measured {
  enabled?: boolean;
  weights?: string;
  prompts?: number;
  missed?: number;
  dtype?: "bf16" | "f32";
  atOnce?: number;
}

test("a model within the bound is certified after the fewest prompts that certify, and the sidecar takes it", async () => {
  const { exitCode, stdout, stderr, certificates } = await measured(2e-5, { enabled: true });
  expect([exitCode, stderr]).toEqual([0, expect.any(String)]);
  const found = JSON.parse(stdout) as { prompts: number; certificate: Certificate };
  expect(found.prompts).toBe(CERTIFIED_PROMPTS_MIN);
  expect(found.certificate).toMatchObject({ weights: "files:m", dtype: "bf16", floor: 0 });
  expect(readCertificates(certificates, { warn: () => {} })).toEqual([found.certificate]);
  const sidecar = await openSidecar({ kv: "auto", certificates });
  await identify(await FakeEngine.start(sidecar.socketPath), "files:m", codecId(LOSSY.name));
});

test("a float32 engine answers several prompts at once, and none waits for more", async () => {
  const float32 = { dtype: "f32", atOnce: FIDELITY_AT_ONCE } as const;
  const { exitCode, stdout } = await measured(2e-5, { enabled: true, ...float32 });
  expect(exitCode).toBe(0);
  const found = JSON.parse(stdout) as { certificate: Certificate };
  expect(found.certificate).toMatchObject({ dtype: "f32", prompts: CERTIFIED_PROMPTS_MIN });
});

test("work at once keeps the order of its results, and begins nothing after a fault", async () => {
  const open: number[] = [];
  let most = 0;
  const work = async (n: number): Promise<number> => {
    open.push(n);
    most = Math.max(most, open.length);
    for (let turn = 0; turn < 5 - n; turn += 1) await Promise.resolve();
    open.splice(open.indexOf(n), 1);
    if (n === 6) throw new Error("six");
    return n * 2;
  };
  expect(await eachAtOnce([0, 1, 2, 3, 4, 5], 3, work)).toEqual([0, 2, 4, 6, 8, 10]);
  expect([most, await eachAtOnce([], 3, work)]).toEqual([3, []]);
  const begun: number[] = [];
  const noted = (n: number): Promise<number> => (begun.push(n), work(n));
  await expect(eachAtOnce([6, 7, 8, 9], 1, noted)).rejects.toThrow("six");
  expect(begun).toEqual([6]);
});

test("a prompt that was not restored is made up for by another, because only restored prompts certify", async () => {
  const { exitCode, stdout } = await measured(2e-5, { enabled: true, missed: 1 });
  expect(exitCode).toBe(0);
  const { prompts, restored, certificate } = JSON.parse(stdout) as Record<string, number | object>;
  expect(prompts).toBeGreaterThan(CERTIFIED_PROMPTS_MIN);
  expect(restored).toBe(Number(prompts) - 1);
  expect(certificate).toMatchObject({ prompts: restored });
});

test("a model beyond the bound ends after one round, without a certificate", async () => {
  const { exitCode, stdout, certificates } = await measured(1e-3, { enabled: true });
  expect(exitCode).toBe(1);
  expect(JSON.parse(stdout)).toMatchObject({ prompts: 8, verdict: "beyond", certificate: null });
  expect(readCertificates(certificates, { warn: () => {} })).toEqual([]);
});

test.each<[kld: number, code: number, verdict: string]>([
  [2e-5, 0, "within"],
  [2e-3, 3, "undecided"],
])(
  "one prompt with a divergence of %d exits with %i and certifies nothing",
  async (kld, code, verdict) => {
    const { exitCode, stdout } = await measured(kld, { enabled: true, prompts: 1 });
    expect(exitCode).toBe(code);
    expect(JSON.parse(stdout)).toMatchObject({ verdict, certificate: null });
  },
);

test("a measurement within the bound says where its certificate is, or why there is none", () => {
  const within = { verdict: "within", prompts: 20, restored: 15 } as const;
  expect(certifiedText({ ...within, restored: 16 }, "/c.json")).toEqual([
    expect.stringContaining("/c.json"),
  ]);
  expect(certifiedText(within, null).join()).toMatch(/15 of 20 prompts .* more --prompts/);
  expect(certifiedText({ ...within, restored: 20 }, null).join()).toMatch(/weights as they were/);
  expect(certifiedText({ ...within, verdict: "beyond" }, null)).toEqual([]);
});

test("weights that were changed in place are measured and not certified", async () => {
  const { stdout } = await measured(2e-5, { enabled: true, weights: "files:m+5eed" });
  expect(JSON.parse(stdout)).toMatchObject({ verdict: "within", certificate: null });
});

test("an engine that is exact for want of a certificate is told how to be measured", async () => {
  const { exitCode, stderr, stdout } = await measured(2e-5, {});
  expect([exitCode, stdout]).toEqual([2, expect.stringContaining("USAGE")]);
  expect(stdout + stderr).toContain("[turbo_quant] enabled = true");
});

test("an engine whose cache cannot be emptied is told how to start", async () => {
  const server = createServer((request, response) => {
    const logprobs = { top_logprobs: [{ "token_id:1": -0.1 }] };
    const answers: Record<string, object> = {
      "/v1/models": { data: [{ id: "m" }] },
      "/v1/completions": { choices: [{ token_ids: [1], logprobs }] },
    };
    const answer = answers[request.url ?? ""];
    response.writeHead(answer === undefined ? 404 : 200).end(JSON.stringify(answer ?? {}));
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  onTestFinished(() => void server.close());
  const { port } = server.address() as AddressInfo;
  const sidecar = await openSidecar();
  const folder = testDirectory();
  const config = join(folder, "tierkv.toml");
  writeFileSync(config, `[sidecar]\nsocket = "${sidecar.socketPath}"\n`);
  const text = join(folder, "text");
  writeFileSync(text, "a".repeat(FIDELITY_PROMPT_CHARS + 10));
  const engine = `http://127.0.0.1:${port}`;
  const line = ["fidelity", "--engine", engine, "--text", text, "--prompts", "2"];
  const { exitCode, stderr } = await runInside([...line, "--config", config]);
  expect(exitCode).not.toBe(0);
  expect(stderr).toContain("VLLM_SERVER_DEV_MODE=1");
});

test.each([
  [[], /one of --engine and --model/],
  [["--engine", "http://127.0.0.1:1", "--model", "."], /one of --engine and --model/],
  [["--model", "/nowhere"], /--model \/nowhere: there is no such folder/],
  [["--model", "/proc/version"], /--model \/proc\/version: it is no folder/],
  [["--model", "/proc"], /--model \/proc: there is no config.json/],
])("what is to be measured is named once: %j", async (arguments_, said) => {
  const text = join(testDirectory(), "text");
  writeFileSync(text, "a".repeat(FIDELITY_PROMPT_CHARS + 10));
  const line = ["fidelity", ...arguments_, "--text", text, "--prompts", "2"];
  const { exitCode, stderr } = await runInside(line);
  expect(exitCode).not.toBe(0);
  expect(stderr).toMatch(said);
});
