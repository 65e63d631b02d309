// Owns the processes started with a real engine: workspace, vaults, sidecar and engine, and their complete removal.
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import {
  DEMO_CONTROL_TIMEOUT_MS,
  DEMO_ENGINE_STOP_MS,
  DEMO_MODEL_MAKE_MS,
  DEMO_SERVICE_START_MS,
  DEMO_SERVICE_STOP_MS,
} from "../../base/limits/general.ts";
import { shipped } from "../../base/shipped.ts";
import { Engine, engineArguments, engineEnvironment } from "./engine.ts";
import type { CacheHits, EngineModel } from "./engine.ts";
import { thisMachine } from "./machine.ts";
import type { Machine } from "./machine.ts";
import { failed, Process, waitUntil } from "./processes.ts";
import { findPython } from "./python.ts";
import type { Codec, Workspace } from "./workspace.ts";

/** Counters of all processes at one moment; all only grow. */
export interface Snapshot {
  engine: CacheHits;
  sidecar: Readonly<Record<string, number>>;
  vault: Readonly<Record<string, number>>;
  vaultRecords: number;
}

/** One target of `tierkv status --json`. */
interface Target {
  target: string;
  records: number | null;
  restoring: number | null;
  counters: Record<string, number> | null;
}

const isSidecar = ({ target }: Target): boolean => target === "sidecar";

const run = promisify(execFile);
/** Folder where Python finds `lab`. */
const SHIM = shipped("python-shim");
export const TIERKV: string = shipped("bin/tierkv.js");

export class Stage {
  readonly workspace: Workspace;
  readonly machine: Machine = thisMachine();
  /** Codec of the sidecar that was started last. */
  codec: Codec = "raw";
  /** Folder of a model that was fetched, and stays for the next demo; null: none was. */
  fetchedModel: string | null = null;
  readonly #signal: AbortSignal;
  /** Python with vLLM and tierKV. */
  readonly #python: string;
  /** In order of start, each with its grace period, ms. */
  readonly #processes = new Map<Process, number>();

  constructor(workspace: Workspace, signal: AbortSignal) {
    this.workspace = workspace;
    this.#signal = signal;
    try {
      this.#python = findPython(process.env);
    } catch (error) {
      workspace.remove();
      throw error;
    }
  }

  /** Makes a checkpoint with seeded random weights; `flags` are those of `python -m lab.checkpoint`. */
  async makeModel(path: string, flags: readonly string[]): Promise<void> {
    const args = ["-m", "lab.checkpoint", "--out", path, ...flags];
    const maker = this.#launch("model maker", this.#python, args, process.env, SHIM);
    await maker.done(DEMO_MODEL_MAKE_MS, this.#signal);
  }

  /** Runs a module of the lab; `last` is the last line that it has printed. */
  runModule(
    name: string,
    module: string,
    args: readonly string[],
    timeoutMs: number,
  ): { done: Promise<void>; last: () => string | null } {
    const started = this.#launch(name, this.#python, ["-m", module, ...args], process.env, SHIM);
    const last = (): string | null => started.tail().at(-1) ?? null;
    return { done: started.done(timeoutMs, this.#signal), last };
  }

  async startVaults(): Promise<void> {
    const start = (name: string): Promise<Process> =>
      this.#serve(name, "vault", this.workspace.path(`${name}.toml`));
    await Promise.all([start("kv-vault"), start("ssm-vault")]);
  }

  startSidecar(codec: Codec = "raw"): Promise<Process> {
    this.codec = codec;
    return this.#serve("sidecar", "sidecar", this.workspace.config(codec));
  }

  /** Starts an engine, which serves once its `ready` has resolved. */
  startEngine(model: EngineModel): Engine {
    const args = engineArguments(this.workspace, this.machine, model);
    const env = engineEnvironment(this.workspace, this.machine, model);
    const server = this.#launch("engine", this.#python, args, env);
    this.#processes.set(server, DEMO_ENGINE_STOP_MS);
    return new Engine(server, `http://127.0.0.1:${this.workspace.port}`, this.#signal);
  }

  /** Replaces the engine's sidecar with one of another codec. */
  async changeSidecar(engine: Engine, old: Process, codec: Codec): Promise<Process> {
    await this.stop(old);
    const sidecar = await this.startSidecar(codec);
    const isRestoring = async (): Promise<boolean> =>
      (await this.#targets()).find(isSidecar)?.restoring === 1;
    const reason = "the engine did not find the new sidecar; see its log";
    await waitUntil(isRestoring, DEMO_SERVICE_START_MS, reason, this.#signal);
    await engine.emptyCache();
    return sidecar;
  }

  async stop(started: Process): Promise<void> {
    await started.stop(this.#processes.get(started) ?? DEMO_SERVICE_STOP_MS);
    if (!started.isRunning()) return;
    throw failed(`the ${started.name} cannot be stopped (process group ${started.pid ?? 0})`);
  }

  /** Counters of engine, sidecar and kv vault, and the vault's records. */
  async snapshot(engine: Engine): Promise<Snapshot> {
    const [hits, targets] = await Promise.all([engine.cacheHits(), this.#targets()]);
    const vault = targets.find(({ target }) => target === "kv_cold");
    return {
      engine: hits,
      sidecar: targets.find(isSidecar)?.counters ?? {},
      vault: vault?.counters ?? {},
      vaultRecords: vault?.records ?? 0,
    };
  }

  /** Ends everything, the last started first. */
  async stopAll(): Promise<void> {
    for (const [started, graceMs] of [...this.#processes].reverse()) await started.stop(graceMs);
  }

  /** Ends everything at once and removes every file; for a process that is about to exit. */
  destroy(): void {
    for (const started of this.#processes.keys()) started.kill();
    this.workspace.remove();
  }

  /** Returns the running processes. */
  running(): Process[] {
    return [...this.#processes.keys()].filter((started) => started.isRunning());
  }

  /** The ends of the logs, for a failure. */
  logTails(): string[] {
    return [...this.#processes.keys()].flatMap((started) => {
      const lines = started.tail();
      return lines.length === 0 ? [] : [`--- ${started.name}: ${started.logPath}`, ...lines];
    });
  }

  async #targets(): Promise<Target[]> {
    const args = [TIERKV, "status", "--json", "--config", this.workspace.config()];
    const limits = { timeout: DEMO_CONTROL_TIMEOUT_MS, signal: this.#signal };
    const { stdout } = await run(process.execPath, args, limits);
    return (JSON.parse(stdout) as { targets: Target[] }).targets;
  }

  async #serve(name: string, command: string, config: string): Promise<Process> {
    const args = [TIERKV, command, "--json", "--config", config];
    const service = this.#launch(name, process.execPath, args);
    const isReady = (): boolean => service.log().includes('"event":"ready"');
    await service.ready(isReady, DEMO_SERVICE_START_MS, this.#signal);
    return service;
  }

  #launch(
    what: string,
    command: string,
    args: readonly string[],
    env: NodeJS.ProcessEnv = process.env,
    cwd: string = this.workspace.dir,
  ): Process {
    const name = `${what} ${this.#processes.size + 1}`;
    // Names of models have a slash.
    const logPath = this.workspace.path(`logs/${name.replaceAll(/[^\w.-]+/g, "-")}.log`);
    const started = new Process({ name, command, args, env, cwd, logPath });
    this.#processes.set(started, DEMO_SERVICE_STOP_MS);
    return started;
  }
}
