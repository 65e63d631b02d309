// Owns the processes that a bench measures: vaults, a sidecar and a TCP peer, in a directory removed at the end.
import {
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Process } from "../../dist/extras/stand/processes.js";
import { PYTHON, TIERKV, at } from "./paths.js";

const START_MS = 20_000;
const STOP_MS = 10_000;
const MODEL_MS = 120_000;
const TCP_PEER = fileURLToPath(new URL("./tcp-peer.js", import.meta.url));
const LOOP_WATCH = fileURLToPath(new URL("./loop-watch.js", import.meta.url));
const ECHO_PEER = fileURLToPath(new URL("./echo-peer.js", import.meta.url));
const LOOP_FILE = "loop";
const NEVER = new AbortController().signal;

/** Restores of a bench are never cut short, because slow ones must show as slow. */
const RESTORE = '[restore]\nwait_ms = 60000\nstall_ms = 30000\nwhen = "always"\n';

/** Adds the last lines of a process's log to its failure. */
function withTail(error, failed) {
  return new Error([error.message, ...failed.tail()].join("\n"), { cause: error });
}

/** Ticks of user and system time in /proc, fixed by the kernel's ABI. */
const TICKS_PER_SECOND = 100;

function cpuTicks(pid) {
  const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
  const [utime, stime] = stat
    .slice(stat.lastIndexOf(")") + 2)
    .split(" ")
    .slice(11, 13);
  return Number(utime) + Number(stime);
}

/** Bytes of a block in `stat`. */
const STAT_BLOCK = 512;

/**
 * Returns resident memory of a process's own: private memory, a vault's records, and a sidecar's records, which it lends. Arenas are
 * left out, because they are an engine's. 0: it has ended.
 */
function ownBytes(name, pid) {
  const status = readFileSync(`/proc/${pid}/status`, "latin1");
  const kinds = name.startsWith("vault") ? ["RssAnon", "RssShmem"] : ["RssAnon"];
  const kib = kinds.map(
    (kind) => new RegExp(`^${kind}:\\s+(\\d+) kB$`, "m").exec(status)?.[1] ?? 0,
  );
  const own = kib.reduce((sum, each) => sum + Number(each), 0) * 1024;
  return own + (name === "sidecar" ? lentBytes(pid) : 0);
}

/** Returns the bytes of the records that a sidecar holds in memory of which it may lend the descriptor. */
function lentBytes(pid) {
  for (const fd of readdirSync(`/proc/${pid}/fd`)) {
    const path = `/proc/${pid}/fd/${fd}`;
    try {
      if (readlinkSync(path).includes("memfd:tierkv-records"))
        return statSync(path).blocks * STAT_BLOCK;
    } catch (error) {
      if (error.code !== "ENOENT") throw error;
    }
  }
  return 0;
}

export class Stand {
  #processes = [];
  /** Vaults by address. */
  #vaults = new Map();
  #files = 0;

  constructor() {
    this.dir = mkdtempSync(join(realpathSync(tmpdir()), "tierkv-bench-"));
    this.onExit = () => this.#destroy();
    process.on("exit", this.onExit);
  }

  path(name) {
    return join(this.dir, name);
  }

  /** Starts a vault of attention KV (`cold`: also of states), here or inside a Network; resolves to its address. */
  async vault(maxBytes, network = null, role = "kv_cold") {
    const host = network?.host ?? "127.0.0.1";
    // Allowed, because the network is a private namespace of this bench.
    const vault = `[vault]\nlisten = "${host}:0"\nmax_bytes = ${maxBytes}\ninsecure_lan = true\n`;
    const config = this.#config(`[cluster]\nrole = "${role}"\n\n${vault}`);
    const inside = network === null ? [] : ["ip", "netns", "exec", network.netns];
    const { address } = await this.#serve("vault", ["vault"], config, { inside });
    this.#vaults.set(address, this.#processes.at(-1));
    return address;
  }

  killVault(address) {
    this.#vaults.get(address).kill();
  }

  /**
   * Starts a sidecar before that vault or pool; null: the machine's own, of `vaultBytes`, which it starts itself. `codec` is
   * `[codec] kv`; `isWatched` enables `pauseMs`.
   */
  async sidecar(kvCold, { isWatched = false, ...given }) {
    const socket = this.path(`sidecar-${this.#files}.sock`);
    const config = this.#sidecarConfig({ kvCold, socket, ...given });
    const { pid } = await this.#serve("sidecar", ["sidecar"], config, { isWatched });
    return { socket, pid, config };
  }

  /** Writes the configuration of a sidecar that engines start themselves; returns its path and socket. */
  ownSidecar(kvCold, given) {
    const socket = this.path(`sidecar-${this.#files}.sock`);
    return { socket, config: this.#sidecarConfig({ kvCold, socket, ...given }) };
  }

  /** Returns the longest pause of the sidecar's event loop between two times of day, in ms. */
  pauseMs([from, to]) {
    const lines = readFileSync(this.path(LOOP_FILE), "latin1").trim().split("\n");
    const told = lines.map((line) => line.split(" ").map(Number));
    return Math.max(...told.filter(([when]) => when >= from && when <= to).map(([, ms]) => ms));
  }

  /** Starts `tierkv gateway` with these lines, before engines that answer; resolves to its address and socket. */
  async gateway(lines) {
    const socket = this.path("gateway.sock");
    const own = { listen: "127.0.0.1:0", socket, index_file: this.path("index") };
    const all = Object.entries(own).map(([name, text]) => `${name} = "${text}"`);
    const config = this.#config(["[gateway]", ...all, ...lines, ""].join("\n"));
    const { url } = await this.#serve("gateway", ["gateway"], config);
    return { url, socket };
  }

  /** Starts a server in Python and waits until it answers at `url`. */
  async server(args, { env, url, timeoutMs }) {
    const server = this.#launch("server", PYTHON, args, env);
    const isUp = () =>
      fetch(url).then(
        ({ ok }) => ok,
        () => false,
      );
    try {
      await server.ready(isUp, timeoutMs, NEVER);
    } catch (error) {
      throw withTail(error, server);
    }
  }

  /** Starts the far side of plain TCP (tcp-peer.js); resolves to its port. */
  async tcpPeer(sinkPort, bytes) {
    const args = [TCP_PEER, String(sinkPort), String(bytes)];
    const { port } = await this.#ready(this.#launch("tcp-peer", process.execPath, args));
    return port;
  }

  /** Starts a process that echoes; resolves to its Unix socket. */
  async echo() {
    const socket = this.path("echo.sock");
    await this.#ready(this.#launch("echo", process.execPath, [ECHO_PEER, socket]));
    return socket;
  }

  /** Runs a Python program to its end, by default with vLLM's interpreter; resolves to the object it prints last. */
  async python(args, { env = {}, timeoutMs, python: path = PYTHON }) {
    const python = this.#launch("python", path, args, { PYTHONPATH: at("python-shim"), ...env });
    try {
      await python.done(timeoutMs, NEVER);
    } catch (error) {
      throw withTail(error, python);
    }
    return JSON.parse(python.tail().at(-1));
  }

  /** Writes a checkpoint with seeded random weights; resolves to its folder. */
  async makeModel(shape) {
    const flags = Object.entries(shape).flatMap(([name, value]) => [`--${name}`, String(value)]);
    const args = ["-m", "lab.checkpoint", "--out", this.path("model"), ...flags];
    const { path } = await this.python(args, { timeoutMs: MODEL_MS });
    return path;
  }

  /** Returns the CPU seconds of this process and all it started, kernel included. */
  cpuSeconds() {
    const { user, system } = process.cpuUsage();
    const started = this.#processes.map(({ pid }) => cpuTicks(pid) / TICKS_PER_SECOND);
    return started.reduce((sum, seconds) => sum + seconds, (user + system) / 1e6);
  }

  /** Returns private resident bytes of each running process, by name. */
  memoryBytes() {
    const running = this.#processes.filter(({ pid }) => existsSync(`/proc/${pid}`));
    return Object.fromEntries(running.map(({ name, pid }) => [name, ownBytes(name, pid)]));
  }

  async close() {
    for (const each of [...this.#processes].reverse()) await each.stop(STOP_MS);
    this.#processes = [];
    process.off("exit", this.onExit);
    rmSync(this.dir, { recursive: true, force: true });
  }

  #destroy() {
    for (const each of this.#processes) each.kill();
    rmSync(this.dir, { recursive: true, force: true });
  }

  #sidecarConfig({ kvCold, socket, arenaBytes, codec, ...given }) {
    const { restore = RESTORE, ssmCold = null, redundancy = "none", idleExitS = null } = given;
    const folder = given.certificates ?? this.path("no-certificates");
    const ssm = ssmCold === null ? "" : `ssm_cold = "${ssmCold}"\n`;
    // Allowed, because a bench's vaults are on this machine or in its own namespaces.
    const kept = `insecure_lan = true\nredundancy = "${redundancy}"\n`;
    const cold = kvCold === null ? "" : `kv_cold = ${JSON.stringify(kvCold)}\n`;
    const own = kvCold === null ? `[vault]\nmax_bytes = ${given.vaultBytes}\n` : "";
    const cluster = `[cluster]\nrole = "inference"\n${cold}${ssm}${kept}${own}`;
    const idle = idleExitS === null ? "" : `idle_exit_s = ${idleExitS}\n`;
    const sidecar = `[sidecar]\nsocket = "${socket}"\narena_bytes = ${arenaBytes}\n${idle}`;
    return this.#config(
      [cluster, sidecar, `[codec]\nkv = "${codec}"\ncertificates = "${folder}"\n`, restore].join(
        "\n",
      ),
    );
  }

  #config(text) {
    const path = this.path(`config-${(this.#files += 1)}.toml`);
    writeFileSync(path, text, { mode: 0o600 });
    return path;
  }

  async #serve(name, command, config, { inside = [], isWatched = false } = {}) {
    const watch = isWatched ? ["--import", LOOP_WATCH] : [];
    const env = isWatched ? { TIERKV_BENCH_LOOP: this.path(LOOP_FILE) } : {};
    const [file, ...args] = [...inside, process.execPath, ...watch, TIERKV, ...command];
    const service = this.#launch(name, file, [...args, "--json", "--config", config], env);
    return { ...(await this.#ready(service)), pid: service.pid };
  }

  #launch(name, command, args, env = {}) {
    const logPath = this.path(`${name}-${(this.#files += 1)}.log`);
    const spec = { name, command, args, env: { ...process.env, ...env }, cwd: this.dir, logPath };
    const started = new Process(spec);
    this.#processes.push(started);
    return started;
  }

  /** Waits for the line that reports readiness, and returns it. */
  async #ready(service) {
    const readyLine = () =>
      service
        .log()
        .split("\n")
        .find((line) => line.includes('"event":"ready"'));
    try {
      await service.ready(() => readyLine() !== undefined, START_MS, NEVER);
    } catch (error) {
      throw withTail(error, service);
    }
    return JSON.parse(readyLine());
  }
}
