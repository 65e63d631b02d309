// Owns the user's idle time as the desktop reports it: logind on Linux, IOHIDSystem on macOS.
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { USER_ASK_MS, USER_ASK_TIMEOUT_MS } from "../../base/limits/user.ts";
import { nowMs, wallClockMs } from "../../base/time.ts";
import type { Source } from "./source.ts";

const run = promisify(execFile);

/** A command that reports idle time; `read` returns milliseconds without input, null for an unusable answer. */
interface Asked {
  readonly name: string;
  readonly command: readonly [string, ...string[]];
  read(answer: string): number | null;
}

/** Properties of logind's manager, which cover desktops and consoles of all seats: loginctl(1), org.freedesktop.login1(5). */
export const LOGIND: Asked = {
  name: "logind",
  command: ["loginctl", "show-seat", "--property=IdleHint", "--property=IdleSinceHint"],
  read(answer): number | null {
    const of = (name: string): string | undefined =>
      new RegExp(`^${name}=(.*)$`, "m").exec(answer)?.[1];
    if (of("IdleHint") === "no") return 0;
    const sinceUs = Number(of("IdleSinceHint") ?? Number.NaN);
    if (of("IdleHint") !== "yes" || Number.isNaN(sinceUs)) return null;
    return sinceUs === 0 ? Infinity : wallClockMs() - sinceUs / 1e3;
  },
};

/** ioreg(8) on macOS: nanoseconds since the last input. Not run on a Mac. */
export const IOHID: Asked = {
  name: "IOHIDSystem",
  command: ["ioreg", "-c", "IOHIDSystem", "-d", "4"],
  read(answer): number | null {
    const ns = /"HIDIdleTime"\s*=\s*(\d+)/.exec(answer)?.[1];
    return ns === undefined ? null : Number(ns) / 1e6;
  },
};

/** Runs the command every USER_ASK_MS. Returns null where it is missing or reports nothing. */
export async function desktop(asked: Asked): Promise<Source | null> {
  const first = await ask(asked);
  if (first === null) return null;
  let seen = { atMs: nowMs(), idleMs: first };
  let isAsking = false;
  const timer = setInterval(() => {
    if (isAsking) return;
    isAsking = true;
    void ask(asked).then((idleMs) => {
      isAsking = false;
      if (idleMs !== null) seen = { atMs: nowMs(), idleMs };
    });
  }, USER_ASK_MS);
  timer.unref();
  return {
    name: asked.name,
    idleMs: () => seen.idleMs + nowMs() - seen.atMs,
    close: () => clearInterval(timer),
  };
}

async function ask({ command: [program, ...args], read }: Asked): Promise<number | null> {
  try {
    const { stdout } = await run(program, args, { timeout: USER_ASK_TIMEOUT_MS });
    return read(stdout);
  } catch {
    return null;
  }
}
