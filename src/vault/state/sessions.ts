// Owns the sessions a vault knows, by name, namespace and tenant, and when they expire.
import { toNamespace } from "../../base/block.ts";
import type { Namespace } from "../../base/block.ts";
import { TierkvError } from "../../base/errors.ts";
import { KEEP_S_MAX, SESSION_NAME_BYTES_MAX, SESSIONS_MAX } from "../../base/limits/sessions.ts";
import type { Logger } from "../../base/log.ts";
import type { VaultCounters } from "../../base/metrics.ts";
import type { StoreId } from "../../base/native.ts";
import { storeSessionAdd, storeSessionEnd, storeSessionStats } from "../../base/native.ts";
import { nowMs } from "../../base/time.ts";
import type * as m from "../../wire/messages.ts";
import { checkKeys } from "./checks.ts";
import type { ModelNames } from "./models.ts";

type SessionStats = ReturnType<typeof storeSessionStats>;

interface Session {
  /** Number of the session in the store. */
  id: number;
  name: string;
  namespace: Namespace;
  tenant: number;
  /** Monotonic time until which its records are kept, in ms; null: not kept. */
  untilMs: number | null;
  timer?: NodeJS.Timeout;
  /** Its records beyond the quota at the last look. */
  refused: number;
}

export interface SessionsOptions {
  store: StoreId;
  models: ModelNames;
  counters: VaultCounters;
  logger: Logger;
}

const NO_KEYS = Buffer.alloc(0);

export class Sessions {
  readonly #options: SessionsOptions;
  /** In order of last use, most recent last. */
  readonly #known = new Map<string, Session>();
  #lastId = 0;

  constructor(options: SessionsOptions) {
    this.#options = options;
  }

  get count(): number {
    return this.#known.size;
  }

  /** Answers Keep. Throws BAD_ARGUMENT for an invalid request, OVERLOAD when SESSIONS_MAX sessions are all kept. */
  receive(request: m.KeepRequest): m.KeepReply {
    checkRequest(request);
    const named =
      request.namespace.length === 0
        ? [...this.#known.values()].filter(({ name }) => name === request.session)
        : [this.#entered(request)];
    let refused = 0;
    for (const session of named) {
      refused += this.#add(session, request);
      if (request.release) this.#end(session, true);
    }
    return { sessions: named.length, refused };
  }

  list(): m.Session[] {
    return [...this.#known.values()].toReversed().map((session) => {
      const { name, namespace, tenant, untilMs } = session;
      const stats = storeSessionStats(this.#options.store, session.id);
      this.#note(session, stats);
      const { keys, records, kept, keptBytes } = stats;
      const model = this.#options.models.modelOf(namespace) ?? "";
      const leftMs = untilMs === null ? 0 : Math.max(1, Math.round(untilMs - nowMs()));
      return { name, namespace, model, tenant, blocks: keys, records, kept, keptBytes, leftMs };
    });
  }

  /** Returns the session's number in the store; 0: unknown, so without records. */
  numberOf({
    session: name,
    namespace,
    tenant,
  }: Pick<m.ListRequest, "session" | "namespace" | "tenant">): number {
    return this.#known.get(keyOf({ name, namespace, tenant }))?.id ?? 0;
  }

  close(): void {
    for (const { timer } of this.#known.values()) clearTimeout(timer);
  }

  #entered({ session: name, namespace, tenant }: m.KeepRequest): Session {
    const key = keyOf({ name, namespace, tenant });
    let session = this.#known.get(key);
    if (session === undefined) {
      if (this.#known.size >= SESSIONS_MAX) this.#makeRoom();
      this.#lastId += 1;
      const own = toNamespace(Buffer.from(namespace));
      session = { id: this.#lastId, name, namespace: own, tenant, untilMs: null, refused: 0 };
    }
    this.#known.delete(key);
    this.#known.set(key, session);
    return session;
  }

  #makeRoom(): void {
    for (const session of this.#known.values()) {
      if (session.untilMs !== null) continue;
      this.#end(session, false);
      return;
    }
    const limit = { count: this.#known.size, limit: SESSIONS_MAX };
    throw new TierkvError("OVERLOAD", { what: "sessions that are kept", ...limit });
  }

  /** Returns how many of its records are beyond the quota. */
  #add(session: Session, { namespace, keys, superseded, keepS }: m.KeepRequest): number {
    if (keepS > 0) {
      session.untilMs = nowMs() + keepS * 1000;
      clearTimeout(session.timer);
      session.timer = setTimeout(() => this.#expire(session), keepS * 1000);
      session.timer.unref();
    }
    const isNamed = namespace.length > 0;
    const { store } = this.#options;
    const added = isNamed ? keys : NO_KEYS;
    const isKept = session.untilMs !== null;
    const { id } = session;
    const stats = storeSessionAdd(store, id, session.namespace, added, superseded, isKept);
    this.#note(session, stats);
    return session.refused;
  }

  /** Called by `list`, too, because records stored after Keep may also exceed the quota. */
  #note(session: Session, { records, kept }: SessionStats): void {
    const { counters, logger } = this.#options;
    const refused = session.untilMs === null ? 0 : records - kept;
    const { name } = session;
    if (refused > 0 && session.refused === 0) {
      logger.warn(
        { session: name, records: refused },
        "[vault] kept_percent has no room for all of a session",
      );
    }
    if (refused > session.refused) counters.add("keeps_refused", refused - session.refused);
    session.refused = refused;
  }

  /** Ends the keeping: the session stays known, its records may be evicted. */
  #expire(session: Session): void {
    session.untilMs = null;
    this.#options.counters.add("sessions_expired");
    storeSessionAdd(this.#options.store, session.id, session.namespace, NO_KEYS, [], false);
    session.refused = 0;
  }

  #end(session: Session, goesFirst: boolean): void {
    clearTimeout(session.timer);
    this.#known.delete(keyOf(session));
    const { store, counters } = this.#options;
    const moved = storeSessionEnd(store, session.id, goesFirst);
    if (goesFirst) {
      counters.add("sessions_released");
      counters.add("demoted", moved);
    }
  }
}

function keyOf({
  name,
  namespace,
  tenant,
}: Pick<Session, "name" | "tenant"> & { namespace: Buffer }): string {
  return `${namespace.toString("hex")} ${tenant} ${name}`;
}

function checkRequest({ session, namespace, keys, keepS, superseded }: m.KeepRequest): void {
  const bytes = Buffer.byteLength(session);
  if (bytes === 0 || bytes > SESSION_NAME_BYTES_MAX) {
    const reason = `a session's name of ${bytes} bytes: expected 1 to ${SESSION_NAME_BYTES_MAX}`;
    throw new TierkvError("BAD_ARGUMENT", { reason });
  }
  if (keepS > KEEP_S_MAX) {
    const reason = `keep_s is ${keepS}: expected at most ${KEEP_S_MAX}`;
    throw new TierkvError("BAD_ARGUMENT", { reason });
  }
  if (namespace.length > 0) {
    checkKeys(namespace, keys);
  } else if (keys.length > 0 || superseded.length > 0) {
    throw new TierkvError("BAD_ARGUMENT", { reason: "keys without a namespace" });
  }
}
