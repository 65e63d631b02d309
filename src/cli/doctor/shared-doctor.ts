// Owns `tierkv doctor --shm`: measures memory that processes share, and finds its defects before records are kept there.
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { existsSync, readFileSync, realpathSync, rmSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import { TierkvError } from "../../base/errors.ts";
import { sharedPath } from "../../base/hosts.ts";
import type { Coherence } from "../../base/hosts.ts";
import { SHARED_PEER_START_MS, SHARED_POLL_MS } from "../../base/limits/shared.ts";
import { shmAnswer, shmAsk } from "../../base/native.ts";
import { shipped } from "../../base/shipped.ts";
import { showRate, table } from "../../base/text.ts";
import { becomes } from "../../base/time.ts";

const PROGRAM = shipped("bin/tierkv.js");
/** Suffix of the measured file beside the region, which stays untouched. */
const SUFFIX = ".doctor";
/** File systems in memory without the `dax` mount option. */
const OF_MEMORY = ["tmpfs", "ramfs", "devtmpfs"];

export type Report = Awaited<ReturnType<typeof shmAsk>>;

export interface Place {
  path: string;
  /** False: there was no region, and what was measured is removed again. */
  isThere: boolean;
  fileSystem: string;
  isMemory: boolean;
  /** Processors of the NUMA node; null: not known. */
  processors: string | null;
}

/** Throws USAGE for a folder, in which a region would be a file, and for a path in a folder that there is not. */
export function checkRegion(path: string): void {
  const memory = sharedPath(path) ?? path;
  const isFolder = memory.endsWith("/") || statSync(memory, NO_THROW)?.isDirectory() === true;
  if (!isFolder) return checkFolder(path, dirname(memory));
  const like = join(path, "tierkv");
  const reason = `--shm ${path}: it is a folder: name a file in it, like --shm ${like}`;
  throw new TierkvError("USAGE", { reason });
}

function checkFolder(path: string, folder: string): void {
  if (statSync(folder, NO_THROW)?.isDirectory() === true) return;
  const reason = `--shm ${path}: there is no folder ${folder}: create it, or correct the path`;
  throw new TierkvError("USAGE", { reason });
}

const NO_THROW = { throwIfNoEntry: false } as const;

/** Returns the file to measure. Throws ARENA_FAILED for a device, because a file beside it lies in other memory. */
function fileAt(path: string): string {
  const memory = sharedPath(path) ?? path;
  if (statSync(memory, NO_THROW)?.isCharacterDevice() === true) {
    const reason = `${memory}: a device, beside which nothing can be measured: name a file on a file system of that memory, mounted with dax`;
    throw new TierkvError("ARENA_FAILED", { reason });
  }
  return memory + SUFFIX;
}

/** Answers one measurement by another process or host with the same memory. */
export async function answerShared(path: string): Promise<void> {
  await shmAnswer(fileAt(path));
}

/** Measures with the peer that waits there, or with a child process. */
export async function measureShared(path: string): Promise<{ report: Report; place: Place }> {
  const file = fileAt(path);
  if (existsSync(file)) return await measured(path, file);
  const peer = startPeer(path);
  // The peer's file is memory until it is removed.
  const end = (): void => {
    peer.process.kill("SIGKILL");
    rmSync(file, { force: true });
  };
  // The system ends this process, because an exit would wait for the measuring thread.
  const onSignal = (signal: NodeJS.Signals): void => {
    end();
    process.off("SIGINT", onSignal).off("SIGTERM", onSignal).kill(process.pid, signal);
  };
  process.on("SIGINT", onSignal).on("SIGTERM", onSignal);
  try {
    await peer.made(file);
    return await measured(path, file);
  } finally {
    end();
    process.off("SIGINT", onSignal).off("SIGTERM", onSignal);
  }
}

async function measured(path: string, file: string): Promise<{ report: Report; place: Place }> {
  const report = await shmAsk(file);
  const processors = processorsOf(report.node ?? null);
  const isThere = existsSync(sharedPath(path) ?? path);
  return { report, place: { path, isThere, ...mountOf(dirname(file)), processors } };
}

function startPeer(path: string): { process: ChildProcess; made(file: string): Promise<void> } {
  const args = [PROGRAM, "doctor", "--shm", path, "--shm-peer"];
  const child = spawn(process.execPath, args, { stdio: ["ignore", "ignore", "pipe"] });
  let said = "";
  child.stderr.on("data", (part: Buffer) => (said += part.toString()));
  return {
    process: child,
    async made(file): Promise<void> {
      const isDecided = (): boolean => existsSync(file) || child.exitCode !== null;
      await becomes(isDecided, SHARED_PEER_START_MS, SHARED_POLL_MS);
      if (existsSync(file)) return;
      const [last = ""] = said.trim().split("\n").slice(-1);
      const reason = last.replace(/^tierkv: (?:shared memory: )?|\s\([A-Z_]+\)$/g, "");
      throw new TierkvError("ARENA_FAILED", { reason: reason || `${file}: nobody made it` });
    },
  };
}

/** Returns the mount of a folder: the last one with the longest matching path. */
function mountOf(folder: string): Pick<Place, "fileSystem" | "isMemory"> {
  const real = `${realpathSync(folder)}/`;
  let most = "";
  let found = { fileSystem: "?", isMemory: false };
  for (const line of readFileSync("/proc/self/mounts", "utf8").split("\n")) {
    const [, point = "", fileSystem = "", options = ""] = line.split(" ");
    if (point === "") continue;
    const prefix = point.endsWith("/") ? point : `${point}/`;
    if (!real.startsWith(prefix) || prefix.length < most.length) continue;
    most = prefix;
    const isDax = options.split(",").some((one) => one === "dax" || one === "dax=always");
    found = { fileSystem, isMemory: isDax || OF_MEMORY.includes(fileSystem) };
  }
  return found;
}

function processorsOf(node: number | null): string | null {
  try {
    return readFileSync(`/sys/devices/system/node/node${node}/cpulist`, "utf8").trim();
  } catch {
    return null;
  }
}

/** Returns the defects; empty: records can be kept there. */
export function faultsOf(
  report: Report,
  place: Place,
  { coherence, host }: { coherence: Coherence; host: number | null },
): string[] {
  const { hardware, clflush, isSameHost } = report;
  const faults: string[] = [];
  const isGood = (way: Report["clflush"]): boolean => way?.unseen === 0 && way.wrong === 0;
  if (!isGood(hardware) && !isGood(clflush)) {
    faults.push("What one process writes the other does not read: keep no records in it.");
  } else if (!isGood(hardware) && coherence === "hardware") {
    faults.push('Its caches are not kept together: write [cluster] coherence = "clflush".');
  }
  if (!isSameHost && host === null) {
    faults.push(
      "Two kernels: write [cluster] host, another number on each machine, before the region is made.",
    );
  }
  if (!place.isMemory) {
    faults.push(
      `${place.fileSystem} writes to a disk: take tmpfs, or a file system mounted with dax.`,
    );
  }
  return faults;
}

const MADE_FOR_IT =
  "There is no region at that path yet: one was made beside it for the measurement, and is gone again.";

/** Returns the report as lines of text. */
export function describeShared(report: Report, place: Place, faults: readonly string[]): string[] {
  const { node, writeBack, loadNs, ownLoadNs, rounds, hardware, clflush, lockNs } = report;
  const cores = place.processors === "" ? "none (far memory, like CXL)" : place.processors;
  const at = node === undefined ? "node unknown" : `NUMA node ${node}, processors ${cores ?? "?"}`;
  const beside =
    ownLoadNs > 0 ? `, ${(loadNs / ownLoadNs).toFixed(2)} times as long as in /dev/shm` : "";
  const ns = (both: readonly number[]): string =>
    both.map((one) => (one === 0 ? "-" : `${Math.round(one)} ns`)).join(" / ");
  const ways = Object.entries({ hardware, clflush }).flatMap(([name, way]) => {
    if (way === undefined) return [];
    const seen = `${rounds - way.unseen} / ${rounds - way.wrong} of ${rounds}`;
    const rates = [way.inPerS, way.outPerS].map(showRate);
    return [[name, ...rates, ns(way.tripNs), seen]];
  });
  const head = ["coherence", "in", "out", "there and back, p50 / p99", "seen / right"];
  const lock = lockNs === undefined ? "between hosts: not measured here" : ns(lockNs);
  return [
    `${place.path}: ${place.fileSystem}, ${at}; reading a cache line of 64 bytes takes ${Math.round(loadNs)} ns${beside}; ${writeBack} writes it back`,
    ...(place.isThere ? [] : [MADE_FOR_IT]),
    ...table([head, ...ways]),
    `lock while both want it, p50 / p99: ${lock}`,
    ...faults,
    ...(faults.length === 0 ? ["Records can be kept there."] : []),
  ];
}
