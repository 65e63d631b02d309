// Owns the figures of waits: a link with latency, slow tiers, the store's lock, many segments; beside an earlier build in the same rounds.
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { figure } from "./lib/figures.js";
import { at } from "./lib/paths.js";

/** Folder that `bench/lib/before.sh` has filled; without it nothing is compared. */
const BEFORE = process.env.TIERKV_BENCH_BEFORE ?? null;
const PROGRAM = at("crates/target/release/examples/waits");
/** From the range reserved for benchmarks (RFC 2544). */
const [NEAR, FAR] = ["198.18.78.1", "198.18.78.2"];
/** Linux's usual limits. */
const LIMITS = { rmem: "4096 131072 6291456", wmem: "4096 16384 4194304", most: "212992" };
const TIMEOUT_MS = 600_000;

const LINKS = [
  { rttMs: 1, lanes: 1, least: 4 },
  { rttMs: 10, lanes: 4, least: 5 },
];

export const title = "Waits: a link with latency, slow tiers, the store's lock, many segments";

export async function run({ isQuick, say }) {
  const build = ["build", "--release", "--quiet", "--package", "tierkv-core", "--example", "waits"];
  execFileSync("cargo", build, { cwd: at("crates"), stdio: ["ignore", "ignore", "inherit"] });
  const rounds = isQuick ? 1 : 5;
  const size = isQuick ? ["--quick"] : [];
  const figures = [];
  for (const { rttMs, lanes, least } of LINKS) {
    say(`a link of ${rttMs} ms, ${lanes} lanes`);
    figures.push(...(await linkFigures({ rttMs, lanes, least, rounds })));
  }
  for (const mode of ["tiers", "disk", "locks", "segments"]) {
    say(mode);
    figures.push(...modeFigures(mode, size, mode === "locks" ? 1 : rounds));
  }
  const notes = [
    BEFORE === null
      ? "nothing is compared: set TIERKV_BENCH_BEFORE to a folder that bench/lib/before.sh has filled"
      : "the ratio is to the build before, in the same round",
    "link: two namespaces, packets wait in a process of the bench; Linux's usual limits on buffers; probes of 192 MiB, of which the first is not counted",
    "slow tiers: 64 records of 16 KiB from an archive whose reads take 30 ms; a record in memory is asked for meanwhile",
    "disk: records of 256 KiB past the page cache over one lane, in two windows of 14",
    "locks: the slowest pin of a record in memory while the disk catches up with records that its queue had no room for",
    "segments: one page read at random from the device, each segment read once before; all files stay open where the limit on open files has room",
  ];
  return { figures, notes };
}

/** What each figure must keep to. */
const FLOORS = {
  first1: { on: "value", most: 70 },
  first4: { on: "value", most: 70 },
  all1: { on: "ratio", most: 1 / 8 },
  all4: { on: "ratio", most: 1 / 8 },
  beside: { on: "value", most: 5 },
  disk: { on: "ratio", least: 2 },
  slowestPin: { on: "value", most: 2 },
  read16000: { on: "value", most: 5 },
};

const NAMES = {
  first1: "behind slow reads, one lane: the first record",
  all1: "behind slow reads, one lane: all 64",
  first4: "behind slow reads, four lanes: the first record",
  all4: "behind slow reads, four lanes: all 64",
  beside: "a record in memory beside them, one lane",
  disk: "cold records of 256 KiB, one lane",
  idlePin: "slowest pin before",
  slowestPin: "slowest pin while the disk catches up",
  slowestWake: "how late the slowest pause between pins ended, without any lock",
  records: "records in memory",
  skipped: "records skipped by the disk's queue",
  onDisk: "records on disk at the end",
};

function modeFigures(mode, size, rounds) {
  const [now, before] = [[], []];
  for (let round = 0; round < rounds; round += 1) {
    if (BEFORE !== null) before.push(linesOf(join(BEFORE, "waits"), [mode, ...size]));
    now.push(linesOf(PROGRAM, [mode, ...size]));
  }
  return now[0].map(({ name, unit }, line) =>
    compared(NAMES[name] ?? `${mode}: ${name}`, unit, {
      now: now.map((lines) => lines[line].value),
      before: before.map((lines) => lines[line].value),
      floor: FLOORS[name] ?? null,
    }),
  );
}

function compared(name, unit, { now, before, floor }) {
  const hasBefore = before.length > 0 && before.every((value) => value > 0);
  const isKept = hasBefore || floor?.on !== "ratio";
  return figure(name, unit, now, {
    ...(hasBefore ? { beside: before, of: "before" } : {}),
    floor: isKept ? floor : null,
  });
}

const parse = (text) => text.trim().split("\n").map(JSON.parse);

function linesOf(program, args) {
  return parse(execFileSync(program, args, { encoding: "utf8", timeout: TIMEOUT_MS }));
}

async function linkFigures({ rttMs, lanes, least, rounds }) {
  const link = await SlowLink.open((rttMs * 1000) / 2);
  try {
    const samples = { now: [], before: [] };
    for (let round = 0; round < rounds; round += 1) {
      if (BEFORE !== null) {
        samples.before.push(await link.measure(join(BEFORE, "waits-usual-limits"), lanes));
      }
      samples.now.push(await link.measure(PROGRAM, lanes));
    }
    return ["from", "to"].map((name) => {
      const of = (lines) => lines.find((line) => line.name === name).value;
      return compared(`${rttMs} ms, ${lanes} lanes: ${name} the vault`, "MiB/s", {
        now: samples.now.map(of),
        before: samples.before.map(of),
        floor: { on: "ratio", least },
      });
    });
  } finally {
    link.close();
  }
}

/** Two namespaces and the link between them. Needs root. */
class SlowLink {
  static async open(oneWayUs) {
    const link = new SlowLink();
    try {
      await link.#start(oneWayUs);
    } catch (error) {
      link.close();
      throw error;
    }
    return link;
  }

  constructor() {
    this.names = ["near", "far"].map((end) => `tierkv-${process.pid}-${end}`);
    this.folder = mkdtempSync(join(tmpdir(), "tierkv-waits-"));
    this.limit = join(this.folder, "limit");
    writeFileSync(this.limit, `${LIMITS.most}\n`);
    for (const name of this.names) execFileSync("ip", ["netns", "add", name]);
  }

  async #start(oneWayUs) {
    const relay = [at("bench/lib/delaying_link.py"), ...this.names, String(oneWayUs)];
    this.relay = spawn("python3", relay, { stdio: ["ignore", "pipe", "inherit"] });
    await firstLine(this.relay);
    for (const [index, name] of this.names.entries()) {
      const [own, peer] = index === 0 ? [NEAR, FAR] : [FAR, NEAR];
      const ip = (...args) => execFileSync("ip", ["-n", name, ...args]);
      ip("addr", "add", own, "peer", peer, "dev", "slow0");
      ip("link", "set", "slow0", "mtu", "65000", "up");
      ip("link", "set", "lo", "up");
      const settings = [`tcp_rmem=${LIMITS.rmem}`, `tcp_wmem=${LIMITS.wmem}`];
      for (const setting of settings) {
        const argv = ["netns", "exec", name, "sysctl", "-q", "-w", `net.ipv4.${setting}`];
        execFileSync("ip", argv);
      }
    }
  }

  /** Runs both ends of a program; each reads the usual limits, which only exist for the whole machine. */
  async measure(program, lanes) {
    const far = this.#spawn(1, program, ["far", FAR]);
    try {
      const port = await firstLine(far);
      far.stdin.write("1\n");
      await firstLine(far);
      const near = this.#spawn(0, program, ["link", `${FAR}:${port}`, "1", String(lanes)]);
      return parse(await whole(near));
    } finally {
      far.kill();
    }
  }

  #spawn(end, program, args) {
    const limits = ["rmem_max", "wmem_max"].map((name) => `/proc/sys/net/core/${name}`);
    const binds = limits.map((path) => `mount --bind ${this.limit} ${path}`).join(" && ");
    const argv = ["netns", "exec", this.names[end], "sh", "-c", `${binds} && exec "$@"`, "sh"];
    const options = { stdio: ["pipe", "pipe", "inherit"], timeout: TIMEOUT_MS };
    return spawn("ip", [...argv, program, ...args], options);
  }

  close() {
    this.relay?.kill();
    for (const name of this.names) execFileSync("ip", ["netns", "del", name]);
    rmSync(this.folder, { recursive: true });
  }
}

/** Lines are read through one reader per process, so that none is lost between two calls. */
const readers = new WeakMap();

async function firstLine(process) {
  if (!readers.has(process)) {
    readers.set(process, createInterface({ input: process.stdout })[Symbol.asyncIterator]());
  }
  const { value, done } = await readers.get(process).next();
  if (done) throw new Error("a process of the bench ended early");
  return value;
}

async function whole(process) {
  let text = "";
  for await (const part of process.stdout) text += part;
  return text;
}
