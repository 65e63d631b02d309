// Owns the sidecar's own vault where none is configured: a child process on a Unix socket, restarted when it dies.
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { TierkvError } from "../../base/errors.ts";
import { parseObject } from "../../base/json.ts";
import type { Running } from "../../base/lifecycle.ts";
import {
  LOCAL_VAULT_LINE_BYTES_MAX,
  LOCAL_VAULT_PAUSE_MAX_MS,
  LOCAL_VAULT_PAUSE_MIN_MS,
  LOCAL_VAULT_STABLE_MS,
  LOCAL_VAULT_START_MS,
  LOCAL_VAULT_STOP_MS,
} from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import type { SidecarCounters } from "../../base/metrics.ts";
import { shipped } from "../../base/shipped.ts";
import { jitterMs, nowMs, sleep, withDeadline } from "../../base/time.ts";

const PROGRAM = shipped("bin/tierkv.js");

export interface LocalVaultOptions {
  /** `unix:/path`. */
  address: string;
  maxBytes: number;
  /** The sidecar's configuration file, from which the vault reads its other keys. */
  configPath: string | null;
  /** Trace endpoint of the sidecar; the vault's too, unless its own key is set. */
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

  /** Resolves when the vault serves. Throws LOCAL_VAULT with the vault's error. */
  async start(): Promise<void> {
    const { address, maxBytes, logger } = this.#options;
    logger.info(
      { address, maxBytes },
      "no vault is configured: this machine keeps the blocks itself, in a vault that ends with this process",
    );
    const child = await this.#launch();
    this.#watch = this.#keepRunning(child);
  }

  /** Ends the vault with SIGTERM, and SIGKILL after a deadline. Idempotent. */
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

  /** Restarts the vault until `close`, after a pause that grows while it dies early. */
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
        if (!signal.aborted)
          logger.error(
            { err: error, pauseMs },
            "the vault of this machine does not start; it is tried again",
          );
        return null;
      });
    }
  }
}

/** One run of `tierkv vault`, which ends when this process's end of its standard input closes, even by a crash. */
class VaultProcess {
  /** Resolves when its first line says that it serves; rejects with LOCAL_VAULT otherwise. */
  readonly ready: Promise<void>;
  /** Resolves to the exit code, signal or error in words. */
  readonly ended: Promise<string>;
  readonly #child: ChildProcess;

  constructor(args: readonly string[], otlpEndpoint: string | null) {
    const traces = otlpEndpoint === null ? {} : { OTEL_EXPORTER_OTLP_ENDPOINT: otlpEndpoint };
    // A process group of its own, because on Ctrl-C the sidecar still sends it pending saves.
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
    // Handle the rejection here, because `ready` may reject when no caller awaits it.
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

/** Throws LOCAL_VAULT with the vault's error unless the line says that it serves. */
function checkReady(line: string): void {
  const said = (parseObject(line) ?? {}) as { event?: string; error?: { message?: string } };
  if (said.event === "ready") return;
  throw new TierkvError("LOCAL_VAULT", { reason: said.error?.message ?? line });
}
