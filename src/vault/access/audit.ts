// Owns the audit log: refusals, changes by administrators and damaged records, as bounded JSON lines without secrets.
import { appendFileSync, renameSync, statSync } from "node:fs";
import { dirname } from "node:path";
import { makeDirectory } from "../../base/directory.ts";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import {
  AUDIT_FILE_BYTES_MAX,
  AUDIT_FILES_KEPT,
  AUDIT_LINES_PER_S_MAX,
  AUDIT_POLL_MS,
  AUDIT_STRANGER_LINES_MAX,
  AUDIT_STRANGER_LINES_PER_S,
} from "../../base/limits/access.ts";
import type { Logger } from "../../base/log.ts";
import { nowMs, wallClockMs } from "../../base/time.ts";

/** Event names, as documented in docs/security.md. */
export type AuditEvent =
  | "started"
  | "auth_failed"
  | "role_missing"
  | "peer_limited"
  | "admin_call"
  | "machine_joined"
  | "namespace_new"
  | "records_bad"
  | "records_quarantined"
  | "quota_reached"
  | "lanes_refused";

export type AuditFields = Readonly<Record<string, string | number | boolean | readonly string[]>>;

/** The group that can cause an event. Strangers and clients have separate budgets; the vault's own events are never dropped. */
const WHOSE: Readonly<Record<AuditEvent, "own" | "client" | "stranger">> = {
  started: "own",
  auth_failed: "stranger",
  role_missing: "client",
  peer_limited: "stranger",
  admin_call: "own",
  machine_joined: "own",
  namespace_new: "client",
  records_bad: "client",
  records_quarantined: "client",
  quota_reached: "client",
  lanes_refused: "stranger",
};

/** Token bucket of lines: a burst, then `perS` lines per second. */
class LineBudget {
  readonly #most: number;
  readonly #perS: number;
  #left: number;
  #atMs = nowMs();
  #suppressed = 0;

  constructor(most: number, perS: number) {
    this.#most = most;
    this.#perS = perS;
    this.#left = most;
  }

  /** Returns the lines dropped since the last one written, or null when this line is dropped, too. */
  take(): number | null {
    const now = nowMs();
    this.#left = Math.min(this.#most, this.#left + ((now - this.#atMs) / 1_000) * this.#perS);
    this.#atMs = now;
    if (this.#left < 1) {
      this.#suppressed += 1;
      return null;
    }
    this.#left -= 1;
    const suppressed = this.#suppressed;
    this.#suppressed = 0;
    return suppressed;
  }
}

/** Characters of a hash that are shown: enough to find it, too few to use it. */
const HASH_CHARS = 8;

/** Returns the first HASH_CHARS digits of a hash. */
export function shortHash(hash: Buffer): string {
  return hash.toString("hex").slice(0, HASH_CHARS);
}

export class AuditLog {
  readonly #path: string | null;
  readonly #logger: Logger;
  #bytes = 0;
  readonly #budgets = {
    stranger: new LineBudget(AUDIT_STRANGER_LINES_MAX, AUDIT_STRANGER_LINES_PER_S),
    client: new LineBudget(AUDIT_LINES_PER_S_MAX, AUDIT_LINES_PER_S_MAX),
  };
  #isFailing = false;

  /** `path` null: nothing is written. Throws CREDENTIALS when the file cannot be opened. */
  constructor(path: string | null, logger: Logger) {
    this.#path = path;
    this.#logger = logger;
    if (path === null) return;
    try {
      makeDirectory(dirname(path));
      appendFileSync(path, "", { mode: 0o600 });
      this.#bytes = statSync(path).size;
    } catch (error) {
      const reason = `it cannot be written: ${toTierkvError(error).message}`;
      throw new TierkvError("CREDENTIALS", { path, reason, fix: "correct [vault] audit_log" });
    }
  }

  /** Appends one line. Never throws: a failing disk is logged once. */
  record(event: AuditEvent, fields: AuditFields = {}): void {
    if (this.#path === null) return;
    const whose = WHOSE[event];
    const left = whose === "own" ? 0 : this.#budgets[whose].take();
    if (left === null) return;
    const suppressed = left === 0 ? {} : { suppressed: left };
    const at = new Date(wallClockMs()).toISOString();
    const line = `${JSON.stringify({ at, event, ...fields, ...suppressed })}\n`;
    try {
      this.#rotate(Buffer.byteLength(line));
      appendFileSync(this.#path, line, { mode: 0o600 });
      this.#isFailing = false;
    } catch (error) {
      if (!this.#isFailing) {
        const { message: reason } = toTierkvError(error);
        this.#logger.error({ path: this.#path, reason }, "the audit log cannot be written");
      }
      this.#isFailing = true;
    }
  }

  #rotate(more: number): void {
    this.#bytes += more;
    if (this.#bytes <= AUDIT_FILE_BYTES_MAX) return;
    const name = (index: number): string => `${this.#path}${index === 0 ? "" : `.${index}`}`;
    for (let index = AUDIT_FILES_KEPT - 1; index >= 0; index -= 1) {
      if (statSync(name(index), { throwIfNoEntry: false }) !== undefined)
        renameSync(name(index), name(index + 1));
    }
    this.#bytes = more;
  }
}

/** Counters whose growth goes into the audit log, with the event's name. */
const WATCHED: Readonly<Record<string, AuditEvent>> = {
  refused_bad_record: "records_bad",
  refused_wrong_key: "records_bad",
  quarantined: "records_quarantined",
  refused_over_budget: "quota_reached",
  lanes_refused: "lanes_refused",
  tls_refused: "lanes_refused",
};

/** Writes an event when a watched counter grew, including counters of lanes. */
export class AuditWatch {
  readonly #audit: AuditLog;
  readonly #counts: () => Readonly<Record<string, number>>;
  readonly #timer: NodeJS.Timeout;
  #last: Readonly<Record<string, number>> = {};

  constructor(audit: AuditLog, counts: () => Readonly<Record<string, number>>) {
    this.#audit = audit;
    this.#counts = counts;
    this.#timer = setInterval(() => this.look(), AUDIT_POLL_MS);
    this.#timer.unref();
  }

  look(): void {
    const now = this.#counts();
    for (const [counter, event] of Object.entries(WATCHED)) {
      const more = (now[counter] ?? 0) - (this.#last[counter] ?? 0);
      if (more > 0) this.#audit.record(event, { counter, more });
    }
    this.#last = now;
  }

  /** Writes the growth since the last look. Idempotent. */
  close(): void {
    clearInterval(this.#timer);
    this.look();
  }
}
