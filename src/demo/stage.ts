// Owns everything one demo run has started: workspace, vaults, sidecar and engine, and that nothing of it is left behind.
import { execFile } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { TierkvError } from "../errors.ts";
import {
  DEMO_CONTROL_TIMEOUT_MS,
  DEMO_ENGINE_STOP_MS,
  DEMO_MODEL_LEN_MAX,
  DEMO_MODEL_MAKE_MS,
  DEMO_POLL_MS,
  DEMO_SERVICE_START_MS,
  DEMO_SERVICE_STOP_MS,
} from "../limits.ts";
import { nowMs, sleep } from "../time.ts";
import { Engine } from "./engine.ts";
import type { EngineModel } from "./engine.ts";
import { thisMachine } from "./machine.ts";
import type { Machine } from "./machine.ts";
import { Process, processesIn } from "./processes.ts";
import type { Snapshot } from "./proof.ts";
import type { Codec, Workspace } from "./workspace.ts";

/** Arguments of `python -m lab.checkpoint`. */
export type ModelShape = Readonly<Record<string, string | number>>;

/** One target of `tierkv status --json`. */
interface Target {
  target: string;
  records: number | null;
  restoring: number | null;
  counters: Record<string, number> | null;
}

const isSidecar = ({ target }: Target): boolean => target === "sidecar";

export interface VaultState extends Snapshot {
  vaultRecords: number;
}

const run = promisify(execFile);
// src and dist lie equally deep.
const PYTHON = fileURLToPath(new URL("../../.venv/bin/python", import.meta.url));
/** Where Python finds `lab`. */
const SHIM = fileURLToPath(new URL("../../python-shim", import.meta.url));
export const TIERKV: string = fileURLToPath(new URL("../../bin/tierkv.js", import.meta.url));

export class Stage {
  readonly workspace: Workspace;
  readonly machine: Machine = thisMachine();
  readonly #signal: AbortSignal;
  /** In the order of starting. */
  readonly #processes: Process[] = [];
  #engines = 0;
  #sidecars = 0;

  constructor(workspace: Workspace, signal: AbortSignal) {
    this.workspace = workspace;
    this.#signal = signal;
    if (existsSync(PYTHON)) return;
    const reason = `there is no Python with vLLM at ${PYTHON}; run \`npm run setup\``;
    throw new TierkvError("DEMO_FAILED", { reason });
  }

  async makeModel(shape: ModelShape): Promise<void> {
    const flags = Object.entries(shape).flatMap(([name, value]) => [`--${name}`, String(value)]);
    const args = ["-m", "lab.checkpoint", "--out", this.workspace.model, ...flags];
    const maker = this.#launch("model maker", PYTHON, args, SHIM);
    await maker.done(DEMO_MODEL_MAKE_MS, this.#signal);
  }

  async startVaults(): Promise<void> {
    await Promise.all([
      this.#serve("kv vault", "vault", this.workspace.path("kv-vault.toml")),
      this.#serve("ssm vault", "vault", this.workspace.path("ssm-vault.toml")),
    ]);
  }

  startSidecar(codec: Codec = "raw"): Promise<Process> {
    this.#sidecars += 1;
    return this.#serve(`sidecar ${this.#sidecars}`, "sidecar", this.workspace.config(codec));
  }

  /** Resolves when an engine that lost its sidecar may restore through the new one. */
  async untilRestoring(): Promise<void> {
    const startedMs = nowMs();
    while ((await this.#targets()).find(isSidecar)?.restoring !== 1) {
      if (nowMs() - startedMs > DEMO_SERVICE_START_MS) {
        const reason = "the engine did not find the new sidecar; see its log";
        throw new TierkvError("DEMO_FAILED", { reason });
      }
      await sleep(DEMO_POLL_MS, this.#signal);
    }
  }

  /** Starts an engine; ready when its `ready` returned. */
  startEngine(model?: EngineModel): Engine {
    this.#engines += 1;
    const name = `engine ${this.#engines}`;
    const engine = Engine.start(
      PYTHON,
      name,
      this.workspace,
      this.machine,
      this.#signal,
      model ?? { path: this.workspace.model, lengthMax: DEMO_MODEL_LEN_MAX },
    );
    this.#processes.push(engine.process);
    return engine;
  }

  stopEngine(engine: Engine): Promise<void> {
    return this.#stop(engine.process, DEMO_ENGINE_STOP_MS);
  }

  stopService(service: Process): Promise<void> {
    return this.#stop(service, DEMO_SERVICE_STOP_MS);
  }

  /** Counters of engine, sidecar and kv vault, and what the vault holds. */
  async snapshot(engine: Engine): Promise<VaultState> {
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
    for (const process of [...this.#processes].reverse()) {
      const isEngine = process.name.startsWith("engine");
      await process.stop(isEngine ? DEMO_ENGINE_STOP_MS : DEMO_SERVICE_STOP_MS);
    }
  }

  /** Ends everything at once and removes every file; for a process that is about to exit. */
  destroy(): void {
    for (const process of this.#processes) process.kill();
    this.workspace.remove();
  }

  /** Processes of this run that still run, in words; also those that left their group. */
  leftovers(): string[] {
    const groups = this.#processes.filter((process) => process.isRunning());
    const strays = processesIn(this.workspace.dir);
    return [
      ...groups.map(({ name, pid }) => `${name} (process group ${pid ?? 0})`),
      ...strays.map((pid) => `process ${pid}`),
    ];
  }

  /** The ends of the logs, for a failure. */
  logTails(): string[] {
    return this.#processes.flatMap((process) => {
      const lines = process.tail();
      return lines.length === 0 ? [] : [`--- ${process.name}: ${process.logPath}`, ...lines];
    });
  }

  /** Ids of the process groups, as `kill` wants them. */
  groups(): string[] {
    return this.#processes.filter((p) => p.isRunning()).map(({ pid }) => `-${pid ?? 0}`);
  }

  /** Writes a request for curl; returns its path. */
  writeRequest(body: object): string {
    const path = this.workspace.path("request.json");
    writeFileSync(path, JSON.stringify(body));
    return path;
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
    name: string,
    command: string,
    args: readonly string[],
    cwd: string = this.workspace.dir,
  ): Process {
    const logPath = this.workspace.log(name);
    const started = new Process({ name, command, args, env: process.env, cwd, logPath });
    this.#processes.push(started);
    return started;
  }

  async #stop(process: Process, graceMs: number): Promise<void> {
    await process.stop(graceMs);
    if (!process.isRunning()) return;
    const reason = `the ${process.name} cannot be stopped (process group ${process.pid ?? 0})`;
    throw new TierkvError("DEMO_FAILED", { reason });
  }
}
