// Owns one run of the demo from start to exit code: signals, the final report, and cleaning up.
import { toTierkvError } from "../../base/errors.ts";
import { nowMs } from "../../base/time.ts";
import { dataText } from "../stand/data.ts";
import { MODEL_NAME } from "../stand/engine.ts";
import { EXIT_INTERRUPTED, guard } from "../stand/guard.ts";
import { Stage, TIERKV } from "../stand/stage.ts";
import { Workspace } from "../stand/workspace.ts";
import { showSeconds } from "./format.ts";
import { Progress } from "./progress.ts";
import { namedFolder } from "./reader.ts";
import { atRealSize, checkMemory, REAL_MEMORY } from "./real-size.ts";
import { problemsIn, resultLines, resultObject } from "./report.ts";
import { perform, readAloud } from "./scenario.ts";
import type { Outcome } from "./scenario.ts";

export interface DemoOptions {
  /** Leave everything running at the end. */
  keep: boolean;
  /** The result as one line of JSON. */
  json: boolean;
  /** A smaller model and a shorter text. */
  quick: boolean;
  /** Adds the act with the KV of a published model. */
  realSize: boolean;
  /** The folder of the model to read with; absent: the demo chooses. */
  model?: string | undefined;
}

const EXIT_OK = 0;
const EXIT_FAILED = 1;

/** Shows the project's main job with a real engine. Resolves to the exit code: 0 only when every restore is proven. */
export async function runDemo(options: DemoOptions): Promise<number> {
  // Refused before anything is started.
  if (options.model !== undefined) namedFolder(options.model);
  const progress = new Progress(process.stderr);
  const interrupt = new AbortController();
  if (options.realSize) checkMemory();
  const memory = options.realSize ? REAL_MEMORY : undefined;
  const stage = new Stage(await Workspace.create(memory), interrupt.signal);
  const unguard = guard(stage, interrupt, (line) => progress.line(line));
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
  { keep, json, quick, realSize, model }: DemoOptions,
): Promise<number> {
  const startedMs = nowMs();
  const facts = { cores: stage.machine.cores.length, dtype: stage.machine.dtype };
  const { logs } = stage.workspace;
  const say = (line: string): boolean => process.stdout.write(`${line}\n`);
  progress.line(`tierKV demo on ${facts.cores} cores, ${facts.dtype}; logs in ${logs}`);
  try {
    const scene = { stage, progress, signal, isQuick: quick };
    await progress.step("start a kv vault and an ssm vault", () => stage.startVaults());
    const reading = await readAloud(scene, { folder: model, mayFetch: !quick });
    const real = realSize ? await atRealSize(scene) : [];
    const outcome = await perform(scene);
    const result = { ...outcome, reading, real };
    const problems = problemsIn(result);
    const isProven = problems.length === 0;
    if (json) say(JSON.stringify(resultObject(result, facts)));
    else say(["", ...resultLines(result), "", ...problems.map(notProven)].join("\n"));
    const took = showSeconds(nowMs() - startedMs);
    progress.line(`${isProven ? "demo passed" : "demo FAILED"} in ${took}`);
    if (keep) showWhatToTry(stage, progress, outcome);
    else await clear(stage, progress, !isProven);
    return isProven ? EXIT_OK : EXIT_FAILED;
  } catch (error) {
    const { code, message } = toTierkvError(error);
    if (!signal.aborted) {
      for (const line of stage.logTails()) progress.line(`  ${line}`);
      if (json) say(JSON.stringify({ ok: false, error: { code, message } }));
      progress.line(`demo FAILED: ${message} (${code})`);
    }
    await clear(stage, progress, !signal.aborted);
    return signal.aborted ? EXIT_INTERRUPTED : EXIT_FAILED;
  }
}

const notProven = (problem: string): string => `NOT PROVEN: ${problem}`;

/** Stops everything and checks that it is gone. */
async function clear(stage: Stage, progress: Progress, areLogsKept: boolean): Promise<void> {
  await progress.step("clean up", () => stage.stopAll());
  const { workspace } = stage;
  workspace.remove(areLogsKept);
  const left = stage.running().map(({ name, pid }) => `${name} (process group ${pid ?? 0})`);
  if (!areLogsKept && workspace.isThere()) left.push(workspace.dir);
  if (left.length > 0) return progress.line(`left behind: ${left.join(", ")}`);
  const kept = [
    ...(areLogsKept ? [`the logs stay in ${workspace.logs}`] : []),
    ...(stage.fetchedModel === null
      ? []
      : [
          `the fetched model stays in ${stage.fetchedModel} for the next demo: remove it if you like`,
        ]),
  ];
  progress.line(["no process and no socket is left behind", ...kept].join("; "));
}

function showWhatToTry(stage: Stage, progress: Progress, { engine, prompt }: Outcome): void {
  const { workspace } = stage;
  const body = { model: MODEL_NAME, prompt, max_tokens: 1, temperature: 0 };
  const request = workspace.write("request.json", JSON.stringify(body));
  const groups = stage.running().map(({ pid }) => `-${pid ?? 0}`);
  const at = {
    tierkv: TIERKV,
    config: workspace.config(stage.codec),
    url: engine.url,
    dir: workspace.dir,
  };
  progress.line(
    dataText("src/extras/demo/data/try.txt", {
      ...at,
      request,
      groups: groups.join(" "),
    }).trimEnd(),
  );
}
