// Owns child processes: runs each in its own process group, with a log, a deadline and no leftovers.
import { spawn } from "node:child_process";
import { createWriteStream, existsSync, mkdirSync, readdirSync, readFileSync } from "node:fs";
import { dirname } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const KILL_GRACE_MS = 5_000;
const LEFTOVER_GRACE_MS = 5_000;
const POLL_MS = 100;
const TAIL_LINES = 15;

const liveGroups = new Set();

for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
  process.once(signal, () => {
    for (const pid of liveGroups) signalGroup(pid, "SIGKILL");
    process.exit(signal === "SIGINT" ? 130 : 143);
  });
}

/** Sends a signal to a whole group; returns false when none of its processes is left. */
function signalGroup(pid, signal) {
  try {
    process.kill(-pid, signal);
    return true;
  } catch {
    return false;
  }
}

/** Returns whether a group still runs; zombies do not count. */
function isRunning(pid) {
  if (!signalGroup(pid, 0)) return false;
  if (!existsSync("/proc/self/stat")) return true;
  return readdirSync("/proc").some((entry) => {
    if (!/^\d+$/.test(entry)) return false;
    try {
      const stat = readFileSync(`/proc/${entry}/stat`, "utf8");
      const [state, , group] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
      return Number(group) === pid && state !== "Z";
    } catch {
      return false; // it ended while we looked
    }
  });
}

/** Ends a group with SIGTERM, then SIGKILL. */
async function endGroup(pid) {
  const deadline = Date.now() + KILL_GRACE_MS;
  signalGroup(pid, "SIGTERM");
  while (isRunning(pid) && Date.now() < deadline) await sleep(POLL_MS);
  signalGroup(pid, "SIGKILL");
}

/** Returns whether processes of the group outlive their leader beyond the grace period. */
async function leftBehind(pid) {
  const deadline = Date.now() + LEFTOVER_GRACE_MS;
  while (isRunning(pid)) {
    if (Date.now() > deadline) return true;
    await sleep(POLL_MS);
  }
  return false;
}

/**
 * Runs a command to its end; never throws for the command's failure.
 * Both output streams go line by line to `logPath` and to `onLine`.
 * @returns {Promise<{code: number, ms: number, timedOut: boolean, leftovers: boolean, tail: string[]}>}
 */
export async function run(command, args, { cwd, env, timeoutMs, logPath, onLine = () => {} }) {
  mkdirSync(dirname(logPath), { recursive: true });
  const log = createWriteStream(logPath);
  log.write(`$ ${command} ${args.join(" ")}\n`);
  const startedMs = Date.now();
  const tail = [];
  const keep = (line) => {
    log.write(`${line}\n`);
    if (line.trim() !== "") tail.push(line);
    if (tail.length > TAIL_LINES) tail.shift();
    onLine(line);
  };

  const child = spawn(command, args, {
    cwd,
    env: { ...process.env, ...env },
    stdio: ["ignore", "pipe", "pipe"],
    detached: true,
  });
  for (const stream of [child.stdout, child.stderr]) {
    createInterface({ input: stream, crlfDelay: Infinity }).on("line", keep);
  }
  const ended = new Promise((resolve) => {
    child.once("error", (error) => resolve({ code: 127, why: error.message }));
    child.once("exit", (code, signal) => resolve({ code: code ?? 128, why: signal }));
  });
  if (child.pid !== undefined) liveGroups.add(child.pid);

  let timedOut = false;
  const timer = setTimeout(() => {
    timedOut = true;
    keep(`stopped: still running after ${timeoutMs / 1_000} s`);
    void endGroup(child.pid);
  }, timeoutMs);
  const { code, why } = await ended;
  clearTimeout(timer);
  if (why && !timedOut) keep(`${command}: ${why}`);
  const leftovers = child.pid !== undefined && !timedOut && (await leftBehind(child.pid));
  if (child.pid !== undefined) await endGroup(child.pid);
  liveGroups.delete(child.pid);
  await drained([child.stdout, child.stderr]);
  await new Promise((resolve) => log.end(resolve));
  return { code, ms: Date.now() - startedMs, timedOut, leftovers, tail };
}

/** Waits until the last lines of an ended process are read. */
async function drained(streams) {
  const deadline = Date.now() + LEFTOVER_GRACE_MS;
  while (streams.some((stream) => !stream.readableEnded) && Date.now() < deadline) {
    await sleep(1);
  }
}

/** "41.2 s" or "3 m 05 s". */
export function elapsed(ms) {
  const seconds = ms / 1_000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  return `${Math.floor(whole / 60)} m ${String(whole % 60).padStart(2, "0")} s`;
}
