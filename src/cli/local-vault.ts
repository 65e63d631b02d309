// Owns the vault of a machine without any other: a child process on a Unix socket, started again when it dies, ended with us.
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { fileURLToPath } from "node:url";
import { TierkvError } from "../errors.ts";
import { parseObject } from "../json.ts";
import type { Running } from "../lifecycle.ts";
import {
  LOCAL_VAULT_LINE_BYTES_MAX,
  LOCAL_VAULT_PAUSE_MAX_MS,
  LOCAL_VAULT_PAUSE_MIN_MS,
  LOCAL_VAULT_STABLE_MS,
  LOCAL_VAULT_START_MS,
  LOCAL_VAULT_STOP_MS,
} from "../limits/general.ts";
import type { Logger } from "../log.ts";
import type { SidecarCounters } from "../metrics.ts";
import { jitterMs, nowMs, sleep, withDeadline } from "../time.ts";

const PROGRAM = fileURLToPath(new URL("../../bin/tierkv.js", import.meta.url));

export interface LocalVaultOptions {
  /** `unix:/path`. */
  address: string;
  maxBytes: number;
  /** The configuration file of the sidecar, for the vault to read its other keys from. */
  configPath: string | null;
  /** Where the sidecar sends traces: so does its vault, unless its own key says otherwise. */
  otlpEndpoint: string | null;
  logger: Logger;
  counters: SidecarCounters;
}

export class LocalVault implements Running {
  readonly #options: LocalVaultOptions;
  readonly #closing = new AbortController();
  #child: VaultProcess | null = null;
  #watch: Promise<void> = Promise.resolve();

  constructor(options: LocalVaultOptions) {
    this.#options = options;
  }

  /** Resolves when it serves. Throws LOCAL_VAULT with its own words when it cannot. */
  async start(): Promise<void> {
    const { address, maxBytes, logger } = this.#options;
    logger.info(
      { address, maxBytes },
      "no vault is configured: this machine keeps the blocks itself, in a vault that ends with this process",
    );
    const child = await this.#launch();
    this.#watch = this.#keepRunning(child);
  }

  /** Ends the vault: asks first, kills what hangs. Idempotent. */
  async close(): Promise<void> {
    this.#closing.abort();
    await this.#child?.stop();
    await this.#watch;
  }

  async #launch(): Promise<VaultProcess> {
    const { address, maxBytes, configPath, otlpEndpoint } = this.#options;
    const args = ["vault", "--json", "--role", "cold", "--until-stdin-ends"];
    args.push("--listen", address, "--max-bytes", String(maxBytes));
    if (configPath !== null) args.push("--config", configPath);
    const child = new VaultProcess(args, otlpEndpoint);
    this.#child = child;
    try {
      await withDeadline(child.ready, LOCAL_VAULT_START_MS, "the start of its process");
    } catch (error) {
      await child.stop();
      throw error;
    }
    return child;
  }

  /** Until we close: a vault that ends is started again, after a pause that grows while it lives only briefly. */
  async #keepRunning(first: VaultProcess): Promise<void> {
    const { logger, counters } = this.#options;
    const { signal } = this.#closing;
    let child: VaultProcess | null = first;
    let pauseMs = LOCAL_VAULT_PAUSE_MIN_MS;
    let startedMs = nowMs();
    for (;;) {
      const how = child === null ? null : await child.ended;
      if (signal.aborted) return;
      if (how !== null)
        logger.error({ how, pauseMs }, "the vault of this machine ended; it is started again");
      if (nowMs() - startedMs > LOCAL_VAULT_STABLE_MS) pauseMs = LOCAL_VAULT_PAUSE_MIN_MS;
      await sleep(jitterMs(pauseMs / 2, pauseMs), signal).catch(() => {});
      if (signal.aborted) return;
      pauseMs = Math.min(pauseMs * 2, LOCAL_VAULT_PAUSE_MAX_MS);
      startedMs = nowMs();
      counters.add("local_vault_restarts");
      child = await this.#launch().catch((error: unknown) => {
        if (!signal.aborted) logger.error({ err: error, pauseMs }, "it is tried again");
        return null;
      });
    }
  }
}

/** One run of `tierkv vault`. It ends by itself when our end of its standard input is gone, however we ended. */
class VaultProcess {
  /** Resolves with its first line of output; rejects with LOCAL_VAULT when it ends before. */
  readonly ready: Promise<void>;
  /** How it ended, in words. */
  readonly ended: Promise<string>;
  readonly #child: ChildProcess;

  constructor(args: readonly string[], otlpEndpoint: string | null) {
    const traces = otlpEndpoint === null ? {} : { OTEL_EXPORTER_OTLP_ENDPOINT: otlpEndpoint };
    // A group of its own: Ctrl-C is for us, who still bring it what is being saved.
    const child = spawn(process.execPath, [PROGRAM, ...args], {
      detached: true,
      env: { ...process.env, ...traces },
      stdio: ["pipe", "pipe", "inherit"],
    });
    this.#child = child;
    child.stdin.on("error", () => {});
    this.ended = new Promise((resolve) => {
      child.once("error", (error) => resolve(error.message));
      child.once("close", (code, signal) => {
        resolve(signal === null ? `exit code ${code ?? 0}` : `signal ${signal}`);
      });
    });
    this.ready = this.#firstLine().then(checkReady);
    // It may end later, when nobody waits for it to be ready any more.
    this.ready.catch(() => {});
  }

  async #firstLine(): Promise<string> {
    const output = this.#child.stdout;
    const line = new Promise<string>((resolve) => {
      let text = "";
      output?.setEncoding("utf8").on("data", (part: string) => {
        if (text.length < LOCAL_VAULT_LINE_BYTES_MAX) text += part;
        if (text.includes("\n")) resolve(text.slice(0, text.indexOf("\n")));
      });
    });
    const ended = this.ended.then((how) => JSON.stringify({ error: { message: how } }));
    return Promise.race([line, ended]);
  }

  async stop(): Promise<void> {
    this.#child.kill("SIGTERM");
    try {
      await withDeadline(this.ended, LOCAL_VAULT_STOP_MS, "its end");
    } catch {
      this.#child.kill("SIGKILL");
      await this.ended;
    }
  }
}

/** Throws what the vault says when it is anything but that it serves. */
function checkReady(line: string): void {
  const said = (parseObject(line) ?? {}) as { event?: string; error?: { message?: string } };
  if (said.event === "ready") return;
  throw new TierkvError("LOCAL_VAULT", { reason: said.error?.message ?? line });
}
