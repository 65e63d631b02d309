// Owns a temporary engine for a model's files: vaults, a sidecar and vLLM on this machine's CPU.
import { FIDELITY_MODEL_LEN } from "../limits/tools.ts";
import { guard } from "../stand/guard.ts";
import { Stage } from "../stand/stage.ts";
import { Workspace } from "../stand/workspace.ts";

/** An engine's address, and the socket of its sidecar. */
export interface Place {
  engine: string;
  socket: string;
}

interface Job<T> {
  /** Called with each step before the engine answers. */
  say: (what: string) => void;
  work: (place: Place) => Promise<T>;
}

/** Runs `work` with an engine, in a checkout that has vLLM. The sidecar uses the default lossy codec. */
export async function withEngineOf<T>(model: string, { say, work }: Job<T>): Promise<T> {
  const interrupt = new AbortController();
  const stage = new Stage(await Workspace.create(), interrupt.signal);
  const unguard = guard(stage, interrupt, say);
  let isDone = false;
  try {
    say("starting vaults and a sidecar");
    await stage.startVaults();
    await stage.startSidecar("int8");
    say("starting vLLM");
    // In bfloat16 one rounding error changes answers as much as a codec does (decision 0125).
    const of = { path: model, lengthMax: FIDELITY_MODEL_LEN, dtype: "float32" } as const;
    const engine = stage.startEngine(of);
    await engine.ready();
    const done = await work({ engine: engine.url, socket: stage.workspace.socket });
    isDone = true;
    return done;
  } finally {
    await stage.stopAll();
    // Logs of a failure stay.
    stage.workspace.remove(!isDone);
    unguard();
  }
}
