// Owns what `tierkv chaos` does to one vault: faults that harm nobody else, on records of its own, and what was seen of the contract.
import { connect } from "node:net";
import { ItemStatus, leadingBits, measuringNamespace, statusName } from "../block.ts";
import type { RecordClass } from "../block.ts";
import { ownRecords } from "../client/own-records.ts";
import { VaultClient } from "../client/vault-client.ts";
import type { StoreItem } from "../client/vault-client.ts";
import { toTierkvError } from "../errors.ts";
import { splitAddress } from "../hosts.ts";
import {
  CALL_TIMEOUT_MS,
  CHAOS_CALL_MS,
  CHAOS_PAYLOAD_BYTES,
  CHAOS_POLL_MS,
  CHAOS_RECORDS,
  CHAOS_SILENT_PEERS,
} from "../limits.ts";
import type { Logger } from "../log.ts";
import { nowMs, sleep } from "../time.ts";
import type { ChannelSecurity } from "../wire/security.ts";

/** One line of the contract. */
export interface ChaosRow {
  /** Of the table of faults in docs/faults.md. */
  fault: string;
  did: string;
  expected: string;
  seen: string;
  ok: boolean;
}

type Look = Pick<ChaosRow, "did" | "expected"> & { seen: string; ok: boolean };

export interface ChaosOptions {
  address: string;
  name: RecordClass;
  logger: Logger;
  security: ChannelSecurity | null;
}

/** All rows in order; cleans up whatever happens. Throws when the vault cannot be reached to begin with. */
export async function chaosVault(options: ChaosOptions): Promise<ChaosRow[]> {
  const run = new ChaosRun(options);
  try {
    return await run.all();
  } finally {
    await run.close();
  }
}

class ChaosRun {
  readonly #options: ChaosOptions;
  readonly #client: VaultClient;
  readonly #namespace = measuringNamespace();
  readonly #items: readonly StoreItem[];
  readonly #spare: readonly StoreItem[];

  constructor(options: ChaosOptions) {
    this.#options = options;
    this.#client = new VaultClient({ ...options, lanes: 0 });
    const make = (): StoreItem[] =>
      ownRecords(this.#namespace, options.name, CHAOS_RECORDS, CHAOS_PAYLOAD_BYTES);
    this.#items = make();
    this.#spare = make();
  }

  async all(): Promise<ChaosRow[]> {
    await this.#client.hello(CALL_TIMEOUT_MS);
    await this.#client.measure(this.#namespace, CHAOS_CALL_MS);
    const steps: readonly [string, () => Promise<Look>][] = [
      ["-", () => this.#wholeSet("before any fault")],
      ["F9", () => this.#flippedBit()],
      ["F10", () => this.#cutShort()],
      ["F11", () => this.#wrongKey()],
      ["F29", () => this.#sameAgain()],
      ["F26", () => this.#otherNamespace()],
      ["F8", () => this.#brokenOff()],
      ["F36", () => this.#silentPeers()],
      ["-", () => this.#wholeSet("after all faults")],
      ["F30", () => this.#flushed()],
    ];
    const rows: ChaosRow[] = [];
    for (const [fault, step] of steps) rows.push({ fault, ...(await this.#guarded(step)) });
    return rows;
  }

  async close(): Promise<void> {
    // What could not be dropped, the vault drops by itself.
    await this.#client.measure(this.#namespace, CHAOS_CALL_MS, true).catch(() => {});
    this.#client.close();
  }

  /** A step that fails is a row that does not hold. */
  async #guarded(step: () => Promise<Look>): Promise<Look> {
    try {
      return await step();
    } catch (error) {
      const seen = toTierkvError(error).message;
      return { did: "a step of this list", expected: "an answer", seen, ok: false };
    }
  }

  async #wholeSet(when: string): Promise<Look> {
    await this.#store(this.#items);
    const good = await this.#sound(this.#items);
    return {
      did: `${CHAOS_RECORDS} records stored and fetched, ${when}`,
      expected: "all come back byte for byte",
      seen: `${good} of ${CHAOS_RECORDS} did`,
      ok: good === CHAOS_RECORDS,
    };
  }

  #flippedBit(): Promise<Look> {
    const [item] = this.#spare;
    const record = Buffer.from(item?.record ?? []);
    record.writeUInt8((record.at(-1) ?? 0) ^ 1, record.length - 1);
    return this.#refused("a record stored with one bit flipped", record, ItemStatus.BAD_RECORD);
  }

  #cutShort(): Promise<Look> {
    const record = (this.#spare[0]?.record ?? Buffer.alloc(0)).subarray(0, -8);
    return this.#refused("a record stored without its end", record, ItemStatus.BAD_RECORD);
  }

  #wrongKey(): Promise<Look> {
    const record = this.#spare[1]?.record ?? Buffer.alloc(0);
    return this.#refused("a sound record stored under another's key", record, ItemStatus.WRONG_KEY);
  }

  /** Offers `record` under the first spare key. */
  async #refused(did: string, record: Buffer, expected: ItemStatus): Promise<Look> {
    const key = this.#spare[0]?.key ?? Buffer.alloc(0);
    const [status] = await this.#store([{ key, record }]);
    const held = await this.#client.lookup(this.#namespace, key, CHAOS_CALL_MS);
    const isHeld = leadingBits(held, 1) > 0;
    return {
      did,
      expected: `${statusName(expected)}, and not held`,
      seen: `${statusName(status ?? ItemStatus.UNSPECIFIED)}, ${isHeld ? "held" : "not held"}`,
      ok: status === expected && !isHeld,
    };
  }

  async #sameAgain(): Promise<Look> {
    const statuses = await this.#store(this.#items);
    const present = statuses.filter((status) => status === ItemStatus.PRESENT).length;
    return {
      did: "all records stored a second time",
      expected: "PRESENT, nothing is sent",
      seen: `${present} of ${CHAOS_RECORDS} PRESENT`,
      ok: present === CHAOS_RECORDS,
    };
  }

  async #otherNamespace(): Promise<Look> {
    const keys = keysOf(this.#items);
    const held = await this.#client.lookup(measuringNamespace(), keys, CHAOS_CALL_MS);
    const hits = held.reduce((sum, byte) => sum + (byte === 0 ? 0 : 1), 0);
    return {
      did: "the same hashes asked for in another namespace",
      expected: "no hit",
      seen: hits === 0 ? "no hit" : "hits",
      ok: hits === 0,
    };
  }

  /** Another client goes in the middle of a store. */
  async #brokenOff(): Promise<Look> {
    const other = new VaultClient({ ...this.#options, lanes: 0 });
    await other.hello(CHAOS_CALL_MS);
    const { reservedBytes: before } = await this.#client.stats(CHAOS_CALL_MS);
    const storing = other.store(this.#namespace, this.#options.name, this.#spare, CHAOS_CALL_MS);
    const ended = storing.then(
      () => "it was through already",
      () => "broken off",
    );
    await sleep(1);
    other.close();
    const how = await ended;
    const isFree = await this.#roomBack(before);
    const sound = await this.#sound(this.#spare, true);
    return {
      did: `a client that goes in the middle of a store (${how})`,
      expected: "its room is free again, and what is held is whole",
      seen: `${isFree ? "room free" : "room still reserved"}, ${sound < 0 ? "a record is not whole" : `${sound} held, all whole`}`,
      ok: isFree && sound >= 0,
    };
  }

  /** Engines may store meanwhile: it is enough that it was as before at one moment. */
  async #roomBack(before: number): Promise<boolean> {
    const endMs = nowMs() + CHAOS_CALL_MS;
    while (nowMs() < endMs) {
      const { reservedBytes } = await this.#client.stats(CHAOS_CALL_MS);
      if (reservedBytes <= before) return true;
      await sleep(CHAOS_POLL_MS);
    }
    return false;
  }

  async #silentPeers(): Promise<Look> {
    const { address } = this.#options;
    const at = address.startsWith("unix:")
      ? { path: address.slice("unix:".length) }
      : splitAddress(address);
    const sockets = Array.from({ length: CHAOS_SILENT_PEERS }, () =>
      connect(at).on("error", () => {}),
    );
    try {
      const good = await this.#sound(this.#items);
      return {
        did: `${CHAOS_SILENT_PEERS} connections that say nothing`,
        expected: "others are served",
        seen: `${good} of ${CHAOS_RECORDS} records came`,
        ok: good === CHAOS_RECORDS,
      };
    } finally {
      for (const socket of sockets) socket.destroy();
    }
  }

  async #flushed(): Promise<Look> {
    const [did, expected] = ["its own records dropped", "none is held"];
    await this.#client.measure(this.#namespace, CHAOS_CALL_MS, true);
    const keys = keysOf(this.#items);
    const held = await this.#client.lookup(this.#namespace, keys, CHAOS_CALL_MS);
    const isGone = held.every((byte) => byte === 0);
    return {
      did,
      expected,
      seen: isGone ? "none is held" : "some are held",
      ok: isGone,
    };
  }

  #store(items: readonly StoreItem[]): Promise<ItemStatus[]> {
    return this.#client.store(this.#namespace, this.#options.name, items, CHAOS_CALL_MS);
  }

  /** How many come back as they are; -1: one came otherwise. Missing ones are no fault where `mayLack`. */
  async #sound(items: readonly StoreItem[], mayLack = false): Promise<number> {
    const parts = items.map((): Buffer[] => []);
    const sink = {
      piece: (item: number, _offset: number, _bytes: number, data: Buffer): void =>
        void parts[item]?.push(Buffer.from(data)),
      missing: (): void => {},
    };
    const runs = [{ recordClass: this.#options.name, group: 0, keys: keysOf(items) }];
    await this.#client.fetch(this.#namespace, runs, sink, { deadlineMs: CHAOS_CALL_MS });
    let sound = 0;
    for (const [at, { record }] of items.entries()) {
      const got = Buffer.concat(parts[at] ?? []);
      if (got.equals(record)) sound += 1;
      else if (got.length > 0 || !mayLack) return -1;
    }
    return sound;
  }
}

function keysOf(items: readonly StoreItem[]): Buffer {
  return Buffer.concat(items.map(({ key }) => key));
}
