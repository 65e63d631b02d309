// Owns the CPU load of other programs as a sign that the machine is in use.
import { readFileSync } from "node:fs";
import { USER_LOAD_SAMPLE_MS, USER_LOAD_SHARE } from "../../base/limits/user.ts";
import { nowMs } from "../../base/time.ts";
import type { Source } from "./source.ts";

/** Clock ticks of a second in /proc/stat: USER_HZ, proc(5). */
const TICKS_PER_S = 100;

interface Sample {
  /** User and system ticks without niced programs; interrupts are left out, because network traffic causes them. */
  busy: number;
  all: number;
  /** This process's own. */
  own: number;
}

/** Returns null where /proc/stat is missing. */
export function othersLoad(
  path = "/proc/stat",
  ownTicks: () => number = ownProcessTicks,
): Source | null {
  let last = sample(path, ownTicks);
  if (last === null) return null;
  let seenMs = -Infinity;
  const timer = setInterval(() => {
    const now = sample(path, ownTicks);
    if (now !== null && last !== null && shareOf(last, now) >= USER_LOAD_SHARE) seenMs = nowMs();
    last = now ?? last;
  }, USER_LOAD_SAMPLE_MS);
  timer.unref();
  return {
    name: "load",
    idleMs: () => nowMs() - seenMs,
    close: () => clearInterval(timer),
  };
}

function shareOf(from: Sample, to: Sample): number {
  const all = to.all - from.all;
  return all <= 0 ? 0 : (to.busy - from.busy - (to.own - from.own)) / all;
}

function sample(path: string, ownTicks: () => number): Sample | null {
  let line: string;
  try {
    line = readFileSync(path, "utf8").split("\n", 1)[0] ?? "";
  } catch {
    return null;
  }
  const ticks = line.split(/\s+/).slice(1, 9).map(Number);
  const [user = 0, , system = 0] = ticks;
  const all = ticks.reduce((sum, each) => sum + each, 0);
  return { busy: user + system, all, own: ownTicks() };
}

function ownProcessTicks(): number {
  const { user, system } = process.cpuUsage();
  return ((user + system) / 1e6) * TICKS_PER_S;
}
