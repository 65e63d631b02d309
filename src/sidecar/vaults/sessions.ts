// Owns the sidecar's session calls: tells each vault which of its blocks to keep, and merges what vaults report.
import { HASH_BYTES, KeyPacker } from "../../base/block.ts";
import { toTierkvError } from "../../base/errors.ts";
import { CALL_TIMEOUT_MS, KEYS_MAX } from "../../base/limits/general.ts";
import {
  SESSION_TELL_TIMEOUT_MS,
  SESSION_TELLS_AT_ONCE,
  SESSION_TELLS_MAX,
} from "../../base/limits/sessions.ts";
import type { Logger } from "../../base/log.ts";
import type { SidecarCounters } from "../../base/metrics.ts";
import { yieldToLoop } from "../../base/time.ts";
import type { BlockStore } from "../../client/source.ts";
import type { PrefetchGroup } from "../socket/asked.ts";
import type { SessionMessage, SessionUpdate } from "../socket/session.ts";
import type { Places, Pools, VaultClients } from "./pools.ts";

/** A session over all vaults. */
export interface SessionSeen {
  name: string;
  model: string;
  tenant: number;
  /** Records in vaults' memory, over all shards and copies ... */
  records: number;
  /** ... and how many of them are kept from eviction. */
  kept: number;
  keptBytes: number;
  /** Milliseconds that it is still kept; 0: no longer. */
  leftMs: number;
}

export interface SessionsSeen {
  sessions: SessionSeen[];
  /** Vaults that did not answer, each with the reason. */
  failed: string[];
}

export interface SessionsOptions {
  /** The lists may grow. */
  vaults: VaultClients;
  pools: Pools;
  counters: SidecarCounters;
  logger: Logger;
}

/** A store that knows sessions. */
type SessionStore = BlockStore & Required<Pick<BlockStore, "keep" | "sessions">>;

function keepsSessions(store: BlockStore): store is SessionStore {
  return store.keep !== undefined && store.sessions !== undefined;
}

const EVERY_NAMESPACE = Buffer.alloc(0);

export class Sessions {
  readonly #options: SessionsOptions;
  readonly #waiting: { message: SessionMessage; shards: number }[] = [];
  #working = 0;

  constructor(options: SessionsOptions) {
    this.#options = options;
  }

  /** Queues a message for the vaults; it copies the hashes, because the frame may go meanwhile. */
  tell(message: SessionMessage, shards: number): void {
    const { counters } = this.#options;
    if (this.#waiting.length >= SESSION_TELLS_MAX) {
      counters.add("session_tells_dropped");
      return;
    }
    counters.add("session_tells");
    const groups = message.groups.map((group) => ({ ...group, hashes: Buffer.from(group.hashes) }));
    this.#waiting.push({ message: { ...message, groups }, shards });
    void this.#work();
  }

  /** Updates all sessions of that name and returns the present state; an empty name only asks. */
  async ask({ session, keepS, isReleased }: SessionUpdate): Promise<SessionsSeen> {
    const failed: string[] = [];
    // One vault may hold both classes.
    const each = new Map(this.#clients().map((client) => [client.address, client]));
    const found = [...each.values()].map(async (client) => {
      try {
        if (session !== "" && (keepS > 0 || isReleased)) {
          const request = { ...NOTHING, session, keepS, release: isReleased };
          await client.keep(request, CALL_TIMEOUT_MS);
        }
        return await client.sessions(CALL_TIMEOUT_MS);
      } catch (error) {
        failed.push(`${client.address}: ${toTierkvError(error).message}`);
        return [];
      }
    });
    const all = new Map<string, SessionSeen>();
    for (const one of (await Promise.all(found)).flat()) {
      if (session !== "" && one.name !== session) continue;
      const { name, model, tenant, records, kept, keptBytes, leftMs } = one;
      const key = `${one.namespace.toString("hex")} ${tenant} ${name}`;
      const seen = all.get(key) ?? {
        name,
        model,
        tenant,
        records: 0,
        kept: 0,
        keptBytes: 0,
        leftMs: 0,
      };
      seen.records += records;
      seen.kept += kept;
      seen.keptBytes += keptBytes;
      seen.leftMs = Math.max(seen.leftMs, leftMs);
      all.set(key, seen);
    }
    return { sessions: [...all.values()], failed };
  }

  #clients(): SessionStore[] {
    const { kv, ssm } = this.#options.vaults;
    return [...kv, ...ssm].filter(keepsSessions);
  }

  /** Sends a few messages at a time, because the client refuses calls above its own limit. */
  async #work(): Promise<void> {
    if (this.#working >= SESSION_TELLS_AT_ONCE) return;
    this.#working += 1;
    const { counters, logger } = this.#options;
    for (let next = this.#waiting.shift(); next !== undefined; next = this.#waiting.shift()) {
      const { message, shards } = next;
      const tells = this.#clients().map(async (client) => {
        try {
          await this.#tellOne(client, message, shards);
        } catch (error) {
          counters.add("session_tells_failed");
          const { address: vault } = client;
          logger.debug({ err: toTierkvError(error), vault }, "a session call failed");
        }
      });
      await Promise.all(tells);
    }
    this.#working -= 1;
  }

  /** Sends calls of one group each; the first names blocks the session gave up, the last ends the session. */
  async #tellOne(client: SessionStore, message: SessionMessage, shards: number): Promise<void> {
    const { session, namespace, tenant, keepS, isReleased } = message;
    const { pools, vaults } = this.#options;
    const of = { ...NOTHING, session, namespace, tenant, keepS };
    for (const group of message.groups) {
      if (group.class !== client.name) continue;
      const vault = vaults[group.class].indexOf(client);
      const lies = placedOn(pools[group.class].placesOf(group.hashes), vault);
      let superseded = group.from > 0 ? [group.group] : [];
      for (const keys of packed(group, lies, shards)) {
        if (keys.length > 0 || superseded.length > 0) {
          await client.keep({ ...of, keys, superseded }, SESSION_TELL_TIMEOUT_MS);
        }
        superseded = [];
        await yieldToLoop();
      }
    }
    if (isReleased) await client.keep({ ...of, release: true }, SESSION_TELL_TIMEOUT_MS);
  }
}

const NOTHING = {
  namespace: EVERY_NAMESPACE,
  tenant: 0,
  keys: Buffer.alloc(0),
  superseded: [],
  keepS: 0,
  release: false,
};

/** Returns whether block `index` lies on a vault, or may. */
function placedOn({ owners, others }: Places, vault: number): (index: number) => boolean {
  return (index) => (owners[index] ?? 0) === vault || others.some((list) => list[index] === vault);
}

/** Yields keys of all shards, as many as one call carries; at least one piece, which may be empty. */
function* packed(
  { group, hashes, from }: PrefetchGroup,
  lies: (index: number) => boolean,
  shards: number,
): Generator<Buffer> {
  const most = Math.floor(KEYS_MAX / shards);
  const indexes = [];
  for (let index = from; index < hashes.length / HASH_BYTES; index += 1) {
    if (lies(index)) indexes.push(index);
  }
  for (let first = 0; first === 0 || first < indexes.length; first += most) {
    const piece = indexes.slice(first, first + most);
    const packer = new KeyPacker(piece.length * shards);
    for (const index of piece) packer.add(hashes, index, group, shards);
    yield packer.keys;
  }
}
