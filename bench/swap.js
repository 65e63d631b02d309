// Owns the figure of two models that alternate on one machine: a chat's first token after the swap, beside its own hit.
import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import { PYTEST } from "../.ci/lib/stages.js";
import { figure } from "./lib/figures.js";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const PYTHON = fileURLToPath(new URL("../.venv/bin/python", import.meta.url));
const TEST = ["-s", "test/engine/test_swap.py", "-k", "chats_of_12000_tokens"];
const TIMEOUT_MS = 1_200_000;
const FLOOR = { on: "ratio", most: 1.3 };

export const title = "Two models take turns on one machine: chats of 12,000 tokens, kept, go on";

export async function run({ say }) {
  say("an engine computes five chats, another model has the machine, the first comes back");
  const { tokens, cold, own, after } = await played();
  return {
    figures: [
      figure(`${tokens} tokens, computed`, "s", cold, { beside: own, of: "own hit" }),
      figure(`${tokens} tokens, after the swap`, "s", after, {
        beside: own,
        of: "own hit",
        floor: FLOOR,
      }),
    ],
    notes: [
      "first tokens of five chats, each once; two layers, 2 heads of 64, float32, blocks of 32 tokens: 2 KiB a token; vLLM on a CPU",
      "own hit: the same engine asked again; after the swap: a new process of the same model, its cache empty",
    ],
  };
}

/** Returns the times that the test prints: seconds by chat. The test itself asserts that all tokens were equal. */
async function played() {
  const child = spawn(PYTHON, [...PYTEST, ...TEST], {
    cwd: ROOT,
    stdio: ["ignore", "pipe", "inherit"],
    timeout: TIMEOUT_MS,
  });
  let said = "";
  for await (const piece of child.stdout) said += piece;
  const line = said.split("\n").find((text) => text.startsWith('{"tokens"'));
  if (line === undefined) throw new Error(`the test failed:\n${said.slice(-4000)}`);
  return JSON.parse(line);
}
