// Owns the proof of `tierkv fidelity`: pieces of text, the verdict, and what it says of an engine it cannot measure.
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { judge, piecesOf } from "../../../src/cli/commands/fidelity.ts";
import type { Answered } from "../../../src/cli/engine-asker.ts";
import { FIDELITY_PROMPT_CHARS } from "../../../src/limits/tools.ts";
import { runInside } from "../../support/command-line.ts";
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
  expect(() => piecesOf("short", 2)).toThrow(/too few/);
});

test("the verdict is about restored prompts, against the own cache's answers", () => {
  const own = [answered(0.5), answered(0.5)];
  const near = judge(own, own, [answered(0.5001, 128), answered(0.1)]);
  expect(near).toMatchObject({ restored: 1, restoredTokens: 128, isWithin: true });
  expect(near.tierkv.answers).toBe(1);
  expect(judge(own, own, [answered(0.4, 128), answered(0.5)]).isWithin).toBe(false);
  expect(() => judge(own, own, own)).toThrow(/no prompt was restored/);
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
  [["--model", "/nowhere"], /--model \/nowhere: there is no config.json/],
])("what is to be measured is named once: %j", async (arguments_, said) => {
  const text = join(testDirectory(), "text");
  writeFileSync(text, "a".repeat(FIDELITY_PROMPT_CHARS + 10));
  const line = ["fidelity", ...arguments_, "--text", text, "--prompts", "2"];
  const { exitCode, stderr } = await runInside(line);
  expect(exitCode).not.toBe(0);
  expect(stderr).toMatch(said);
});
