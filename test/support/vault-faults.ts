// Owns a run of harmless faults against one vault: damaged, cut and misplaced records of its own, and the observed behaviour.
import { connect } from "node:net";
import { ItemStatus, leadingBits, measuringNamespace, statusName } from "../../src/base/block.ts";
import type { Namespace, RecordClass } from "../../src/base/block.ts";
import { toTierkvError } from "../../src/base/errors.ts";
import { connectionTo } from "../../src/base/hosts.ts";
import { CALL_TIMEOUT_MS } from "../../src/base/limits/general.ts";
import type { Logger } from "../../src/base/log.ts";
import { becomes, sleep } from "../../src/base/time.ts";
import { VaultClient } from "../../src/client/vault/vault-client.ts";
import type { ChannelSecurity } from "../../src/wire/security.ts";
import { OwnRecords } from "./own-records.ts";
import type { OwnCall, OwnRecord } from "./own-records.ts";

const CALL_MS = 10_000;
const RECORDS = 8;
const PAYLOAD_BYTES = 65_536;
const SILENT_PEERS = 16;
const POLL_MS = 20;

/** One row of the contract, with its observed outcome. */
export interface FaultRow {
  /** Number in the fault table of docs/faults.md, or `-`. */
  fault: string;
  did: string;
  expected: string;
  seen: string;
  ok: boolean;
}

type Look = Pick<FaultRow, "did" | "expected"> & { seen: string; ok: boolean };

export interface FaultOptions {
  address: string;
  name: RecordClass;
  logger: Logger;
  security: ChannelSecurity | null;
  /** Called before each row. */
  onStep?: (done: number, all: number) => void;
}

/** Runs all rows in order and always cleans up. Throws when the vault cannot be reached at the start. */
export async function faultVault(options: FaultOptions): Promise<FaultRow[]> {
  const namespace = measuringNamespace();
  const make = (): Promise<OwnRecords> =>
    OwnRecords.open(namespace, options.name, RECORDS, PAYLOAD_BYTES);
  const run = new FaultRun(options, namespace, await make(), await make());
  try {
    return await run.all();
  } finally {
    await run.close();
  }
}

class FaultRun {
  readonly #options: FaultOptions;
  readonly #client: VaultClient;
  readonly #namespace: Namespace;
  readonly #records: OwnRecords;
  readonly #spare: OwnRecords;
  readonly #call: OwnCall;

  constructor(options: FaultOptions, namespace: Namespace, records: OwnRecords, spare: OwnRecords) {
    this.#options = options;
    this.#client = new VaultClient(options);
    this.#namespace = namespace;
    this.#records = records;
    this.#spare = spare;
    this.#call = { client: this.#client, deadlineMs: CALL_MS };
  }

  async all(): Promise<FaultRow[]> {
    await this.#client.hello(CALL_TIMEOUT_MS);
    await this.#client.measure(this.#namespace, CALL_MS);
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
    const rows: FaultRow[] = [];
    for (const [fault, step] of steps) {
      this.#options.onStep?.(rows.length, steps.length);
      rows.push({ fault, ...(await this.#guarded(step)) });
    }
    return rows;
  }

  async close(): Promise<void> {
    // A failure is harmless, because the vault drops the records itself after some minutes.
    await this.#client.measure(this.#namespace, CALL_MS, true).catch(() => {});
    this.#client.close();
    this.#records.close();
    this.#spare.close();
  }

  /** Turns a step that throws into a row that does not hold. */
  async #guarded(step: () => Promise<Look>): Promise<Look> {
    try {
      return await step();
    } catch (error) {
      const seen = toTierkvError(error).message;
      return { did: "a step of this list", expected: "an answer", seen, ok: false };
    }
  }

  async #wholeSet(when: string): Promise<Look> {
    await this.#records.store(this.#call);
    const good = await this.#sound(this.#records);
    return {
      did: `${RECORDS} records stored and fetched, ${when}`,
      expected: "all come back byte for byte",
      seen: `${good} of ${RECORDS} did`,
      ok: good === RECORDS,
    };
  }

  #flippedBit(): Promise<Look> {
    const record = Buffer.from(this.#spare.all[0]?.record ?? []);
    record.writeUInt8((record.at(-1) ?? 0) ^ 1, record.length - 1);
    return this.#refused("a record stored with one bit flipped", record, ItemStatus.BAD_RECORD);
  }

  #cutShort(): Promise<Look> {
    const record = (this.#spare.all[0]?.record ?? Buffer.alloc(0)).subarray(0, -8);
    return this.#refused("a record stored without its end", record, ItemStatus.BAD_RECORD);
  }

  #wrongKey(): Promise<Look> {
    const record = this.#spare.all[1]?.record ?? Buffer.alloc(0);
    return this.#refused("a sound record stored under another's key", record, ItemStatus.WRONG_KEY);
  }

  /** Offers `record` under the first spare key. */
  async #refused(did: string, record: Buffer, expected: ItemStatus): Promise<Look> {
    const key = this.#spare.all[0]?.key ?? Buffer.alloc(0);
    const [status] = await this.#spare.store(this.#call, [{ key, record }]);
    const held = await this.#client.lookup(this.#namespace, key, CALL_MS);
    const isHeld = leadingBits(held, 1) > 0;
    return {
      did,
      expected: `${statusName(expected)}, and not held`,
      seen: `${statusName(status ?? ItemStatus.UNSPECIFIED)}, ${isHeld ? "held" : "not held"}`,
      ok: status === expected && !isHeld,
    };
  }

  async #sameAgain(): Promise<Look> {
    const statuses = await this.#records.store(this.#call);
    const present = statuses.filter((status) => status === ItemStatus.PRESENT).length;
    return {
      did: "all records stored a second time",
      expected: "PRESENT, nothing is sent",
      seen: `${present} of ${RECORDS} PRESENT`,
      ok: present === RECORDS,
    };
  }

  async #otherNamespace(): Promise<Look> {
    const keys = keysOf(this.#records.all);
    const held = await this.#client.lookup(measuringNamespace(), keys, CALL_MS);
    const hits = held.reduce((sum, byte) => sum + (byte === 0 ? 0 : 1), 0);
    return {
      did: "the same hashes asked for in another namespace",
      expected: "no hit",
      seen: hits === 0 ? "no hit" : "hits",
      ok: hits === 0,
    };
  }

  /** Closes another client in the middle of its store. */
  async #brokenOff(): Promise<Look> {
    const other = new VaultClient(this.#options);
    await other.hello(CALL_MS);
    const { reservedBytes: before } = await this.#client.stats(CALL_MS);
    const storing = this.#spare.store({ ...this.#call, client: other });
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

  /** Waits until reserved bytes are back at `before` once; engines may store meanwhile. */
  #roomBack(before: number): Promise<boolean> {
    const isBack = async (): Promise<boolean> =>
      (await this.#client.stats(CALL_MS)).reservedBytes <= before;
    return becomes(isBack, CALL_MS, POLL_MS);
  }

  async #silentPeers(): Promise<Look> {
    const at = connectionTo(this.#options.address);
    const sockets = Array.from({ length: SILENT_PEERS }, () => connect(at).on("error", () => {}));
    try {
      const good = await this.#sound(this.#records);
      return {
        did: `${SILENT_PEERS} connections that say nothing`,
        expected: "others are served",
        seen: `${good} of ${RECORDS} records came`,
        ok: good === RECORDS,
      };
    } finally {
      for (const socket of sockets) socket.destroy();
    }
  }

  async #flushed(): Promise<Look> {
    const [did, expected] = ["its own records dropped", "none is held"];
    await this.#client.measure(this.#namespace, CALL_MS, true);
    const keys = keysOf(this.#records.all);
    const held = await this.#client.lookup(this.#namespace, keys, CALL_MS);
    const isGone = held.every((byte) => byte === 0);
    return {
      did,
      expected,
      seen: isGone ? "none is held" : "some are held",
      ok: isGone,
    };
  }

  /** Counts records that come back unchanged; -1: one is changed, or missing without `mayLack`. */
  async #sound(records: OwnRecords, mayLack = false): Promise<number> {
    const returned = await records.fetch(this.#call);
    const isWrong = returned.some((one) => one === "other" || (one === "none" && !mayLack));
    return isWrong ? -1 : returned.filter((one) => one === "same").length;
  }
}

function keysOf(items: readonly OwnRecord[]): Buffer {
  return Buffer.concat(items.map(({ key }) => key));
}
