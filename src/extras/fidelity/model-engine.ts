// Owns a temporary engine for a model's files: vaults, a sidecar and vLLM on this machine's CPU.
import { FIDELITY_MODEL_LEN } from "../../base/limits/tools.ts";
import { EXIT_INTERRUPTED, guard } from "../stand/guard.ts";
import { Stage } from "../stand/stage.ts";
import { Workspace } from "../stand/workspace.ts";

/** An engine's address, and the socket of its sidecar. */
export interface Place {
  engine: string;
  socket: string;
  /** Ends the work; null: nothing does but the process's end. */
  signal: AbortSignal | null;
}

interface Job<T> {
  /** Called with each step before the engine answers. */
  say: (what: string) => void;
  /** Called with a step whose end may be far, and its work. */
  during: <Done>(what: string, work: () => Promise<Done>) => Promise<Done>;
  work: (place: Place) => Promise<T>;
}

/**
 * Runs `work` with an engine, where there is a Python with vLLM and tierKV. The sidecar uses the lossy codec. Returns an exit code
 * after an interrupt.
 */
export async function withEngineOf<T>(
  model: string,
  { say, during, work }: Job<T>,
): Promise<T | typeof EXIT_INTERRUPTED> {
  const interrupt = new AbortController();
  const { signal } = interrupt;
  const stage = new Stage(await Workspace.create(), signal);
  const unguard = guard(stage, interrupt, say);
  let areLogsWanted = true;
  try {
    say("starting vaults and a sidecar");
    await stage.startVaults();
    await stage.startSidecar("int8");
    // In bfloat16 one rounding error changes answers as much as a codec does (decision 0140).
    const of = { path: model, lengthMax: FIDELITY_MODEL_LEN, dtype: "float32" } as const;
    const engine = stage.startEngine(of);
    await during("starting vLLM", () => engine.ready());
    const done = await work({ engine: engine.url, socket: stage.workspace.socket, signal });
    areLogsWanted = false;
    return done;
  } catch (error) {
    if (!signal.aborted) {
      for (const line of stage.logTails()) say(`  ${line}`);
      throw error;
    }
    areLogsWanted = false;
    return EXIT_INTERRUPTED;
  } finally {
    await during("stopping vLLM", () => stage.stopAll());
    stage.workspace.remove(areLogsWanted);
    unguard();
  }
}
