// Owns one run of the demo from start to exit code: signals, what is said at the end, and cleaning up.
import { toTierkvError } from "../errors.ts";
import { nowMs } from "../time.ts";
import { MODEL_NAME } from "./engine.ts";
import { showSeconds } from "./format.ts";
import { Progress } from "./progress.ts";
import { findProblems } from "./proof.ts";
import { readAloud } from "./readable.ts";
import { readingLines, readingProblems } from "./reading.ts";
import type { Reading } from "./reading.ts";
import { resultLines, resultObject } from "./report.ts";
import { perform } from "./scenario.ts";
import type { Outcome } from "./scenario.ts";
import { Stage, TIERKV } from "./stage.ts";
import { Workspace } from "./workspace.ts";

export interface DemoOptions {
  /** Leave everything running at the end. */
  keep: boolean;
  /** The result as one line of JSON. */
  json: boolean;
  /** A smaller model and a shorter text. */
  quick: boolean;
}

const EXIT_OK = 0;
const EXIT_FAILED = 1;
const EXIT_INTERRUPTED = 130;

/** Shows the project's main job with a real engine. Resolves to the exit code: 0 only when every restore is proven. */
export async function runDemo(options: DemoOptions): Promise<number> {
  const progress = new Progress(process.stderr);
  const interrupt = new AbortController();
  const workspace = await Workspace.create();
  let stage: Stage;
  try {
    stage = new Stage(workspace, interrupt.signal);
  } catch (error) {
    workspace.remove();
    throw error;
  }
  const unguard = guard(stage, interrupt, progress);
  try {
    return await play(stage, progress, interrupt.signal, options);
  } finally {
    unguard();
  }
}

async function play(
  stage: Stage,
  progress: Progress,
  signal: AbortSignal,
  options: DemoOptions,
): Promise<number> {
  const startedMs = nowMs();
  const { cores, dtype } = stage.machine;
  progress.line(`tierKV demo on ${cores.length} cores, ${dtype}; logs in ${stage.workspace.logs}`);
  try {
    const scene = { stage, progress, signal, isQuick: options.quick };
    await progress.step("start a kv vault and an ssm vault", () => stage.startVaults());
    const readings = await readAloud(scene);
    const outcome = await perform(scene);
    const isProven = showResult(outcome, readings, { cores: cores.length, dtype }, options);
    progress.line(
      `${isProven ? "demo passed" : "demo FAILED"} in ${showSeconds(nowMs() - startedMs)}`,
    );
    if (options.keep) showWhatToTry(stage, progress, outcome);
    else await clear(stage, progress, isProven);
    return isProven ? EXIT_OK : EXIT_FAILED;
  } catch (error) {
    if (!signal.aborted) showFailure(stage, progress, error, options);
    await clear(stage, progress, signal.aborted);
    return signal.aborted ? EXIT_INTERRUPTED : EXIT_FAILED;
  }
}

/** First signal: the demo stops and cleans up. Second, or any other exit: everything is killed at once. */
function guard(stage: Stage, interrupt: AbortController, progress: Progress): () => void {
  const signals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
  const onExit = (): void => stage.destroy();
  const onSignal = (): void => {
    if (interrupt.signal.aborted) process.exit(EXIT_INTERRUPTED);
    progress.line("\nstopping: cleaning up; a second signal kills everything at once");
    interrupt.abort();
  };
  for (const signal of signals) process.on(signal, onSignal);
  process.on("exit", onExit);
  return () => {
    for (const signal of signals) process.off(signal, onSignal);
    process.off("exit", onExit);
  };
}

/** Says what was measured; true when it proves the restores. */
function showResult(
  { trials }: Outcome,
  readings: readonly Reading[],
  facts: object,
  { json }: DemoOptions,
): boolean {
  const problems = [...findProblems(trials), ...readingProblems(readings)];
  const lines = json
    ? [JSON.stringify(resultObject(trials, readings, facts))]
    : [
        "",
        ...resultLines(trials),
        ...readingLines(readings),
        "",
        ...problems.map((problem) => `NOT PROVEN: ${problem}`),
      ];
  for (const line of lines) process.stdout.write(`${line}\n`);
  return problems.length === 0;
}

function showFailure(
  stage: Stage,
  progress: Progress,
  error: unknown,
  { json }: DemoOptions,
): void {
  for (const line of stage.logTails()) progress.line(`  ${line}`);
  const { code, message } = toTierkvError(error);
  if (json) process.stdout.write(`${JSON.stringify({ ok: false, error: { code, message } })}\n`);
  progress.line(`demo FAILED: ${message} (${code})`);
}

/** Stops everything and looks whether it is gone. After a failure the logs stay. */
async function clear(stage: Stage, progress: Progress, removeLogs: boolean): Promise<void> {
  await progress.step("clean up", () => stage.stopAll());
  const { workspace } = stage;
  if (removeLogs) workspace.remove();
  else workspace.removeBulk();
  const left = [
    ...stage.leftovers(),
    ...(removeLogs && workspace.isThere() ? [workspace.dir] : []),
  ];
  if (left.length > 0) return progress.line(`left behind: ${left.join(", ")}`);
  const kept = removeLogs ? "" : `; the logs stay in ${workspace.logs}`;
  progress.line(`nothing is left behind: no process, no socket, no model${kept}`);
}

function showWhatToTry(stage: Stage, progress: Progress, { engine, prompt }: Outcome): void {
  const { dir, logs } = stage.workspace;
  const config = stage.workspace.config();
  const body = { model: MODEL_NAME, prompt, max_tokens: 1, temperature: 0 };
  const request = stage.writeRequest(body);
  const lines = [
    "",
    "Everything is left running. Try:",
    "  # how sidecar and vaults are",
    `  node ${TIERKV} status --config ${config}`,
    "  # empty the engine's own cache, then time the same long text: restored",
    `  curl -s -X POST ${engine.url}/reset_prefix_cache`,
    `  curl -s ${engine.url}/v1/completions -H 'content-type: application/json' -d @${request} -o /dev/null -w '%{time_total} s\\n'`,
    "  # drop what the vaults hold, empty the cache again, and the same request is computed",
    `  node ${TIERKV} flush --yes --config ${config}`,
    `  tail -f ${logs}/*.log`,
    "Stop it:",
    `  kill -TERM -- ${stage.groups().join(" ")} && sleep 5 && rm -r ${dir}`,
  ];
  for (const line of lines) progress.line(line);
}
