// Owns the effect of signals on everything that a stage has started.
import type { Stage } from "./stage.ts";

export const EXIT_INTERRUPTED = 130;

/** The first signal stops and cleans up; a second one, or any other exit, kills everything at once. */
export function guard(
  stage: Stage,
  interrupt: AbortController,
  say: (line: string) => void,
): () => void {
  const signals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
  const onExit = (): void => stage.destroy();
  const onSignal = (): void => {
    if (interrupt.signal.aborted) process.exit(EXIT_INTERRUPTED);
    say("\nstopping: cleaning up; a second signal kills everything at once");
    interrupt.abort();
  };
  for (const signal of signals) process.on(signal, onSignal);
  process.on("exit", onExit);
  return () => {
    for (const signal of signals) process.off(signal, onSignal);
    process.off("exit", onExit);
  };
}
