// Owns the figures of the demo: times to the first token, as `tierkv demo` measures and checks them.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { describe } from "./lib/figures.js";
import { TIERKV } from "./lib/paths.js";

const TIMEOUT_MS = 1_800_000;
/** Progress lines of the demo within a step, which are left out. */
const HEARTBEAT = /\] {2}\.\.\. /;

export const title =
  "Time to the first token of a long prompt: computed, own cache, restored (tierkv demo)";

export async function run({ isQuick, say }) {
  const result = await runDemo(isQuick ? ["--quick"] : [], say);
  if (result.ok !== true) {
    const { message } = result.error ?? { message: result.problems?.join("; ") };
    throw new Error(`the demo proved nothing: ${message}`);
  }
  const figures = result.requests.map((request) =>
    describe({
      name: request.name,
      unit: "ms",
      value: request.ttftMs,
      ...(request.kind === "cold" ? {} : { ratio: 1 / request.ratioToCold, of: "computed" }),
    }),
  );
  const { promptTokens } = result.requests[0];
  return { figures, notes: [`${promptTokens} prompt tokens`], demo: result };
}

/** Runs the demo as a person would and passes its progress on. */
async function runDemo(flags, say) {
  const args = [TIERKV, "demo", "--json", ...flags];
  const child = spawn(process.execPath, args, {
    stdio: ["ignore", "pipe", "pipe"],
    timeout: TIMEOUT_MS,
  });
  // The demo ends its own processes when it is stopped.
  const onExit = () => child.kill("SIGTERM");
  process.on("exit", onExit);
  let out = "";
  child.stdout.setEncoding("utf8").on("data", (text) => (out += text));
  child.stderr.setEncoding("utf8").on("data", (text) => {
    const lines = text.split("\n").filter((line) => line !== "" && !HEARTBEAT.test(line));
    for (const line of lines) say(line);
  });
  await once(child, "close");
  process.off("exit", onExit);
  const line = out.trim().split("\n").at(-1);
  if (!line) throw new Error(`the demo ended with exit code ${child.exitCode} and no result`);
  return JSON.parse(line);
}
