// Owns the open tokenizers by folder: read again where files changed, closed when idle, and tried again after a doubling pause where opening failed.
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import {
  GATEWAY_FOLDER_RETRY_MAX_MS,
  GATEWAY_FOLDER_RETRY_MIN_MS,
  GATEWAY_FOLDERS_FAILED_MAX,
  GATEWAY_TOKENIZER_IDLE_MS,
  GATEWAY_TOKENIZERS_MAX,
} from "../../base/limits/gateway.ts";
import type { Logger } from "../../base/log.ts";
import type * as native from "../../base/native.ts";
import { nowMs } from "../../base/time.ts";
import { readModelFolder, stampOf } from "./folder.ts";
import type { ModelFolder } from "./folder.ts";

export interface Opened extends ModelFolder {
  /** Stamp of its files; another one means other files. */
  stamp: string;
  usedMs: number;
  encode(text: string, isFramed: boolean): Promise<Uint32Array>;
  close(): void;
}

export interface Failed {
  reason: string;
  pauseMs: number;
  /** Time from which it may be tried again. */
  againMs: number;
}

type Core = Pick<typeof native, "tokenizerOpen" | "tokenizerEncode" | "tokenizerClose">;

export class Folders {
  readonly #logger: Logger;
  readonly #opened = new Map<string, Opened>();
  readonly #opening = new Map<string, Promise<Opened | Failed>>();
  readonly #failed = new Map<string, Failed>();
  readonly #timer: NodeJS.Timeout;
  #isClosed = false;

  constructor(logger: Logger) {
    this.#logger = logger;
    this.#timer = setInterval(() => this.#closeUnused(), GATEWAY_TOKENIZER_IDLE_MS);
    this.#timer.unref();
  }

  close(): void {
    this.#isClosed = true;
    clearInterval(this.#timer);
    for (const opened of this.#opened.values()) opened.close();
    this.#opened.clear();
  }

  /** Returns an open tokenizer and marks it as used; null: not open. */
  openedOf(folder: string): Opened | null {
    const opened = this.#opened.get(folder);
    if (opened === undefined) return null;
    opened.usedMs = nowMs();
    return opened;
  }

  /** null: the folder is open, or was not tried. */
  failedOf(folder: string): Failed | null {
    return this.#failed.get(folder) ?? null;
  }

  /** Opens a folder as its files are now. A failed folder is not read again before its pause is over. */
  async open(folder: string): Promise<Opened | Failed> {
    const failed = this.failedOf(folder);
    if (failed !== null && nowMs() < failed.againMs) return failed;
    const begun = this.#opening.get(folder);
    if (begun !== undefined) return begun;
    const opening = this.#try(folder).finally(() => this.#opening.delete(folder));
    this.#opening.set(folder, opening);
    return opening;
  }

  async #try(folder: string): Promise<Opened | Failed> {
    try {
      const taken = new Set([...this.#opened.keys(), ...this.#opening.keys()]);
      if (!taken.has(folder) && taken.size >= GATEWAY_TOKENIZERS_MAX) {
        const reason = `${GATEWAY_TOKENIZERS_MAX} tokenizers are open, the most there may be`;
        throw new TierkvError("SYSTEM", { reason });
      }
      const stamp = await stampOf(folder);
      const last = this.openedOf(folder);
      if (last?.stamp === stamp) {
        this.#failed.delete(folder);
        return last;
      }
      const core: Core = await import("../../base/native.ts");
      // The folder is read first, because a failure after the opening would leave the tokenizer open.
      const model = await readModelFolder(folder);
      const id = await core.tokenizerOpen(folder);
      const opened: Opened = {
        ...model,
        stamp,
        usedMs: nowMs(),
        encode: (text, isFramed) => core.tokenizerEncode(id, text, isFramed),
        close: () => core.tokenizerClose(id),
      };
      last?.close();
      if (this.#isClosed) opened.close();
      else this.#opened.set(folder, opened);
      this.#failed.delete(folder);
      return opened;
    } catch (error) {
      return this.#fail(folder, toTierkvError(error).message);
    }
  }

  /** Closes idle tokenizers. Queued texts are younger than the idle time, so none loses its tokenizer. */
  #closeUnused(): void {
    for (const [folder, opened] of this.#opened) {
      if (nowMs() - opened.usedMs < GATEWAY_TOKENIZER_IDLE_MS) continue;
      this.#opened.delete(folder);
      opened.close();
    }
  }

  #fail(folder: string, reason: string): Failed {
    const last = this.failedOf(folder);
    if (last?.reason !== reason) {
      this.#logger.warn(
        { folder, reason },
        "a tokenizer cannot be opened: engines make the tokens",
      );
    }
    const doubled = last === null ? GATEWAY_FOLDER_RETRY_MIN_MS : 2 * last.pauseMs;
    const pauseMs = Math.min(doubled, GATEWAY_FOLDER_RETRY_MAX_MS);
    const failed = { reason, pauseMs, againMs: nowMs() + pauseMs };
    this.#failed.delete(folder);
    this.#failed.set(folder, failed);
    for (const oldest of this.#failed.keys()) {
      if (this.#failed.size <= GATEWAY_FOLDERS_FAILED_MAX) break;
      this.#failed.delete(oldest);
    }
    return failed;
  }
}
