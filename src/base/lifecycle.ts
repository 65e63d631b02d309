// Owns the start and stop of a process: named start steps with timeouts, drain on a signal, exit at once on the second.
import { isTierkvError, TierkvError, toTierkvError } from "./errors.ts";
import { DRAIN_TIMEOUT_MS, START_STEP_TIMEOUT_MS } from "./limits/general.ts";
import type { Logger } from "./log.ts";
import { withDeadline } from "./time.ts";

/** A running part. `close` drains, is bounded, and may be called twice. */
export interface Running {
  close(): Promise<void>;
}

/** One step of a start. The part it returns is closed when a later step fails or the whole stops. */
export interface StartStep {
  name: string;
  run(): Promise<Running | undefined>;
  timeoutMs?: number;
}

/** Runs steps in order; a hung or failed step is named and earlier parts are closed. Closes in reverse order. */
export async function startSteps(steps: readonly StartStep[]): Promise<Running> {
  const open: Running[] = [];
  for (const step of steps) {
    try {
      const running = await runStep(step);
      if (running !== undefined) open.push(running);
    } catch (error) {
      await closeAll(open);
      throw error;
    }
  }
  return { close: () => closeAll(open) };
}

async function runStep(step: StartStep): Promise<Running | undefined> {
  const timeoutMs = step.timeoutMs ?? START_STEP_TIMEOUT_MS;
  try {
    return await withDeadline(step.run(), timeoutMs, step.name);
  } catch (error) {
    if (isTierkvError(error) && error.code === "DEADLINE" && error.details["what"] === step.name) {
      throw new TierkvError("START_TIMEOUT", { step: step.name, timeoutMs }, { cause: error });
    }
    throw error;
  }
}

async function closeAll(open: Running[]): Promise<void> {
  let failure: unknown;
  for (let running = open.pop(); running !== undefined; running = open.pop()) {
    try {
      await running.close();
    } catch (error) {
      failure ??= error;
    }
  }
  if (failure !== undefined) throw toTierkvError(failure);
}

/** The part of `process` that handles signals; a test passes its own. */
export interface SignalSource {
  on(signal: NodeJS.Signals, listener: (signal: NodeJS.Signals) => void): unknown;
  off(signal: NodeJS.Signals, listener: (signal: NodeJS.Signals) => void): unknown;
  exit(code: number): unknown;
}

export interface RunOptions {
  logger: Logger;
  drainTimeoutMs?: number;
  /** Stops the process without a signal; its reason, a text, is logged. */
  stop?: AbortSignal | undefined;
  source?: SignalSource;
  /** Signals caught since before the start; left out: they are caught from the call on. */
  signals?: CaughtSignals;
}

/** SIGTERM and SIGINT, which no longer end the process by themselves; the second one exits with 128 + its number. */
export interface CaughtSignals {
  /** Resolves to the name of the first. */
  first: Promise<string>;
  /** Lets them end the process again. */
  stop(): void;
}

const SIGNALS = { SIGINT: 130, SIGTERM: 143 } as const;

/**
 * Starts, runs until SIGTERM, SIGINT or `stop`, drains, and returns the exit code: 0, or 1 when draining failed or took
 * too long.
 * A second signal exits at once with 128 + its number. A signal during the start takes effect when the start ends.
 */
export async function runUntilSignal(
  start: () => Promise<Running>,
  options: RunOptions,
): Promise<number> {
  const { source = process, stop } = options;
  const asked = options.signals ?? catchSignals(source);
  try {
    const running = await start();
    const reason = await Promise.race([asked.first, ...(stop === undefined ? [] : [fired(stop)])]);
    options.logger.info({ reason }, "stopping: finishing open work; a second signal exits at once");
    return await drain(running, options);
  } finally {
    asked.stop();
  }
}

function fired(signal: AbortSignal): Promise<string> {
  return new Promise((resolve) => {
    const onAbort = (): void => resolve(String(signal.reason));
    if (signal.aborted) onAbort();
    else signal.addEventListener("abort", onAbort, { once: true });
  });
}

/** Catches signals from now on: a program calls it before it says anything, and passes the result to `runUntilSignal`. */
export function catchSignals(source: SignalSource = process): CaughtSignals {
  let count = 0;
  let onFirst: (signal: string) => void = () => {};
  const first = new Promise<string>((resolve) => {
    onFirst = resolve;
  });
  const onSignal = (signal: NodeJS.Signals): void => {
    count += 1;
    if (count === 1) onFirst(signal);
    else source.exit(signal === "SIGINT" ? SIGNALS.SIGINT : SIGNALS.SIGTERM);
  };
  const names = Object.keys(SIGNALS) as (keyof typeof SIGNALS)[];
  for (const name of names) source.on(name, onSignal);
  return {
    first,
    stop(): void {
      for (const name of names) source.off(name, onSignal);
    },
  };
}

async function drain(running: Running, options: RunOptions): Promise<number> {
  try {
    await withDeadline(running.close(), options.drainTimeoutMs ?? DRAIN_TIMEOUT_MS, "draining");
    options.logger.info("stopped");
    return 0;
  } catch (error) {
    options.logger.error({ err: error }, "stopped before all work was finished");
    return 1;
  }
}
