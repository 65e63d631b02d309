// Owns the canary of each vault: small records of the sidecar's own, fetched again now and then; a wrong one quarantines the vault.
import { HASH_BYTES } from "../../block.ts";
import type { RecordClass, ItemStatus } from "../../block.ts";
import { ownRecords } from "../../client/own-records.ts";
import type { StoreItem, VaultClient } from "../../client/vault-client.ts";
import {
  CANARY_CALL_MS,
  CANARY_PAYLOAD_BYTES,
  CANARY_RECORDS,
  QUARANTINE_MS,
} from "../../limits.ts";
import type { Logger } from "../../log.ts";
import type { SidecarCounters } from "../../metrics.ts";
import { jitterMs, nowMs, randomToken, sleep } from "../../time.ts";
import type { VaultClients } from "./pools.ts";

export interface CanaryOptions {
  /** 0: nothing is ever checked. */
  intervalMs: number;
  vaults: VaultClients;
  /** Nothing is restored or saved just now. */
  isIdle(): boolean;
  /** What came from vaults of this class, and nobody uses, is not to be given out again. */
  onQuarantine(recordClass: RecordClass): void;
  counters: SidecarCounters;
  logger: Logger;
}

/** Checks until closed; what fails is tried again at the next turn, and nobody waits for it. */
export class Canary {
  readonly #options: CanaryOptions;
  readonly #closing = new AbortController();
  /** In a namespace that nobody else has, so that nobody else can have stored other bytes there. */
  readonly #namespace = randomToken(HASH_BYTES);
  readonly #records: Record<RecordClass, readonly StoreItem[]>;
  readonly #quarantinedAtMs = new Map<VaultClient, number>();
  #turn = 0;

  constructor(options: CanaryOptions) {
    this.#options = options;
    const make = (name: RecordClass): StoreItem[] =>
      ownRecords(this.#namespace, name, CANARY_RECORDS, CANARY_PAYLOAD_BYTES);
    this.#records = { kv: make("kv"), ssm: make("ssm") };
    // Ends by itself, on close.
    if (options.intervalMs > 0) void this.#run();
  }

  close(): void {
    this.#closing.abort();
  }

  async #run(): Promise<void> {
    const { signal } = this.#closing;
    const { intervalMs } = this.#options;
    while (!signal.aborted) {
      try {
        await sleep(jitterMs(intervalMs / 2, intervalMs), signal);
        if (this.#options.isIdle()) await this.#checkAll();
      } catch {
        // Closed.
      }
    }
  }

  async #checkAll(): Promise<void> {
    this.#turn += 1;
    const { kv, ssm } = this.#options.vaults;
    for (const client of [...kv, ...ssm]) {
      this.#release(client);
      if (client.isOpen || client.isReadOnly) continue;
      try {
        await this.#check(client);
      } catch {
        // A vault that is not there, or takes nothing from us: the breaker knows, and the other one has its turn.
      }
    }
  }

  /** Its time is over: the check that follows says whether it may stay. */
  #release(client: VaultClient): void {
    const atMs = this.#quarantinedAtMs.get(client);
    if (atMs === undefined || nowMs() - atMs < QUARANTINE_MS) return;
    this.#quarantinedAtMs.delete(client);
    client.endQuarantine();
  }

  async #check(client: VaultClient): Promise<void> {
    const records = this.#records[client.name];
    const expected = records[this.#turn % records.length];
    if (expected === undefined) return;
    const { counters } = this.#options;
    const got = await this.#fetch(client, expected.key);
    counters.add("canary_checks");
    if (got === null) {
      counters.add("canary_missing");
      await client.store(this.#namespace, client.name, records, CANARY_CALL_MS);
    } else if (!got.equals(expected.record)) {
      this.#quarantine(client);
    }
  }

  /** The record's bytes as they came; null: the vault does not hold it. */
  async #fetch(client: VaultClient, key: Buffer): Promise<Buffer | null> {
    const parts: Buffer[] = [];
    let missed: ItemStatus | null = null;
    const sink = {
      piece: (_item: number, _offset: number, _bytes: number, data: Buffer): void =>
        void parts.push(Buffer.from(data)),
      missing: (_item: number, status: ItemStatus): void => {
        missed = status;
      },
    };
    const runs = [{ recordClass: client.name, group: 0, keys: key }];
    const deadline = { deadlineMs: CANARY_CALL_MS, signal: this.#closing.signal };
    await client.fetch(this.#namespace, runs, sink, deadline);
    return missed === null ? Buffer.concat(parts) : null;
  }

  #quarantine(client: VaultClient): void {
    const { counters, logger, onQuarantine } = this.#options;
    counters.add("canary_wrong");
    const reason = "it gave back other bytes than it was given";
    logger.error(
      { vault: client.address, class: client.name, untilRestartOrMs: QUARANTINE_MS },
      `vault quarantined: ${reason}; nothing is restored from it: check its memory and disk, then restart the sidecar`,
    );
    this.#quarantinedAtMs.set(client, nowMs());
    client.quarantine(reason);
    onQuarantine(client.name);
  }
}
