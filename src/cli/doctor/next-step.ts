// Owns the last line of `tierkv doctor`: what to do next, from its problems and its forecast.
import { isProblem } from "../../diagnosis/findings.ts";
import type { Finding } from "../../diagnosis/findings.ts";

/** The forecast of a prompt: see Outlook in commands/doctor.ts. */
interface Forecast {
  gain: number | null;
  isSeen: boolean;
}

export interface Diagnosed {
  findings: readonly Finding[];
  /** Whether engines may run on this machine. */
  isEngineHost: boolean;
  hasSidecar: boolean;
  /** Forecast of each connected engine that reports times. */
  engines: readonly (readonly Forecast[])[];
  /** Whether only engines are connected that report no times of computing. */
  isUntold?: boolean;
}

const WATCH = "nothing; `tierkv top` shows restores as they happen";

/** Returns one sentence. */
export function nextStep({
  findings,
  isEngineHost,
  hasSidecar,
  engines,
  isUntold = false,
}: Diagnosed): string {
  const again = "then run `tierkv doctor` again";
  if (findings.some(isProblem)) return `mend the first PROBLEM above, ${again}`;
  if (!isEngineHost)
    return "run `tierkv doctor` on an engine's machine, which knows what computing takes";
  if (isUntold) return WATCH;
  const prompts = engines.flat();
  if (!hasSidecar || engines.length === 0)
    return `start vLLM with tierKV's connector, let it answer a few prompts, ${again}`;
  if (prompts.length === 0) return `start a vault that this machine reaches, ${again}`;
  if (prompts.some(({ gain }) => gain === null))
    return `let the engine answer a few prompts, ${again}`;
  const helped = prompts.filter(({ gain }) => (gain ?? 0) > 1);
  if (helped.length === 0)
    return "nothing will be restored until the link is faster or prompts are longer: `tierkv plan` shows what each link takes";
  if (helped.some(({ isSeen }) => isSeen)) return WATCH;
  return `send prompts again after the engine's own cache has lost them (README, "See a restore"); \`tierkv explain\` says of each what was restored, and after a few restores from a vault (\`loaded\`; a prompt that is still in shared memory is \`local\`, until other prompts take its place) \`tierkv doctor\` counts what they took`;
}
