// Owns the proof of `tierkv warm`: what each line becomes, how many at a time, what is summed up, and what is refused by its line.
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { json } from "node:stream/consumers";
import { expect, onTestFinished, test } from "vitest";
import { runInside } from "../../support/command-line.ts";
import { openSidecar, testDirectory } from "../../support/sidecars.ts";
import { until } from "../../support/vaults.ts";

interface Asked {
  path: string | undefined;
  body: Record<string, unknown>;
}

/** Answers each prompt with 100 tokens, of which 60 are restored; one that is called "bad" is refused. It answers nobody before so many asked `together`. */
async function openEngine(together = 1, restored = 60) {
  const asked: Asked[] = [];
  const seen = { now: 0, most: 0 };
  const server = createServer((request, response) => {
    const answer = async (): Promise<void> => {
      if (request.method === "GET") {
        response.end(JSON.stringify({ data: [{ id: "m" }] }));
        return;
      }
      seen.now += 1;
      seen.most = Math.max(seen.most, seen.now);
      const body = (await json(request)) as Record<string, unknown>;
      asked.push({ path: request.url, body });
      await until(() => seen.most >= together, "so many requests at once");
      seen.now -= 1;
      const said = {
        usage: { prompt_tokens: 100, prompt_tokens_details: { cached_tokens: 70 } },
        kv_transfer_params: { tierkv: { restored_tokens: restored, saved_ms: 1500 } },
      };
      response.writeHead(body["prompt"] === "bad" ? 400 : 200).end(JSON.stringify(said));
    };
    void answer();
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  onTestFinished(() => void server.close());
  const { port } = server.address() as AddressInfo;
  return { asked, seen, url: `http://127.0.0.1:${port}` };
}

async function warm(url: string, lines: readonly unknown[], ...flags: string[]) {
  const sidecar = await openSidecar();
  const folder = testDirectory();
  const [config, file] = [join(folder, "tierkv.toml"), join(folder, "prompts.jsonl")];
  writeFileSync(config, `[sidecar]\nsocket = "${sidecar.socketPath}"\n`);
  writeFileSync(file, lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
  return runInside(["warm", file, "--engine", url, "--config", config, ...flags]);
}

test("texts, token ids, messages and whole requests are computed with one token answered", async () => {
  const { asked, url } = await openEngine();
  const messages = [{ role: "user", content: "hello" }];
  const named = { max_load_tokens: 8, tierkv: { session: "s", report: false } };
  const whole = { messages, max_completion_tokens: 9, stream: true, kv_transfer_params: named };
  const lines = ["a text", [1, 2, 3], messages, whole];
  const { exitCode, stdout } = await warm(url, lines, "--at-once", "1", "--json");
  expect(exitCode).toBe(0);
  expect(JSON.parse(stdout)).toEqual({
    schema: 1,
    prompts: 4,
    failed: 0,
    reason: null,
    promptTokens: 400,
    restoredTokens: 240,
    computedTokens: 120,
    savedMs: 6000,
    savedBlocks: 0,
  });
  const one = { model: "m", max_tokens: 1, stream: false };
  const report = { kv_transfer_params: { tierkv: { report: true } } };
  const reported = { ...named, tierkv: { session: "s", report: true } };
  expect(asked).toEqual([
    { path: "/v1/completions", body: { ...one, prompt: "a text", ...report } },
    { path: "/v1/completions", body: { ...one, prompt: [1, 2, 3], ...report } },
    { path: "/v1/chat/completions", body: { ...one, messages, ...report } },
    { path: "/v1/chat/completions", body: { ...one, messages, kv_transfer_params: reported } },
  ]);
});

test("where nothing was stored or restored, it says what that can mean", async () => {
  const { url } = await openEngine(1, 0);
  const { exitCode, stdout } = await warm(url, ["a text"]);
  expect([exitCode, stdout]).toEqual([
    0,
    expect.stringMatching(/stored: +0 blocks\n +only whole blocks are stored: .*`tierkv explain`/s),
  ]);
  const held = await openEngine();
  expect((await warm(held.url, ["a text"])).stdout).not.toContain("whole blocks");
});

test("no more are under way than allowed, and one that fails does not end the others", async () => {
  const { asked, seen, url } = await openEngine(3);
  const lines = Array.from({ length: 12 }, (_none, index) => (index === 3 ? "bad" : `p ${index}`));
  const { exitCode, stdout } = await warm(url, lines, "--at-once", "3");
  expect([exitCode, asked.length, seen.most]).toEqual([1, 12, 3]);
  expect(stdout).toMatch(/11 of 12 prompts with 1100 tokens/);
  expect(stdout).toMatch(/failed: +1, the first: line 4: .*400/);
});

test("the address may be that of the API, and what is none, or does not answer, is told so", async () => {
  const { asked, url } = await openEngine();
  expect((await warm(`${url}/v1/`, ["a text"])).exitCode).toBe(0);
  expect(asked).toHaveLength(1);
  const none = await warm("127.0.0.1:8000", ["a text"]);
  expect([none.exitCode, none.stderr]).toEqual([
    2,
    expect.stringContaining('--engine = "127.0.0.1:8000": no http address'),
  ]);
  const gone = createServer().listen(0, "127.0.0.1");
  await once(gone, "listening");
  const { port } = gone.address() as AddressInfo;
  gone.close();
  const silent = await warm(`http://127.0.0.1:${port}`, ["a text"]);
  expect([silent.exitCode, silent.stderr]).toEqual([1, expect.stringContaining("ECONNREFUSED")]);
});

test("a file without a prompt is refused by name", async () => {
  const { asked, url } = await openEngine();
  const { exitCode, stderr } = await warm(url, []);
  expect([exitCode, asked]).toEqual([2, []]);
  expect(stderr).toContain("prompts.jsonl has no prompt");
});

test.each([[["good", 7]], [["good", []]], [["good", { text: "x" }]], [["good", [{}, 1]]]])(
  "%j is refused by its line, and nothing is sent",
  async (lines) => {
    const { asked, url } = await openEngine();
    const { exitCode, stderr } = await warm(url, lines);
    expect([exitCode, asked]).toEqual([2, []]);
    expect(stderr).toContain("line 2: expected a text, token ids, messages");
  },
);

test("an engine that nobody listens for is named with what the system says", async () => {
  const { exitCode, stderr } = await warm("http://127.0.0.1:1", ["x"]);
  expect([exitCode, stderr]).toEqual([
    1,
    expect.stringMatching(/127\.0\.0\.1:1\S* is not answered: the Fetch standard blocks this port/),
  ]);
});
