// Owns the canary of each vault: small records of the sidecar's own, fetched again now and then; a wrong one quarantines the vault.
import { HASH_BYTES } from "../../block.ts";
import type { RecordClass } from "../../block.ts";
import type { VaultClient } from "../../client/vault-client.ts";
import { isRemote } from "../../client/vault.ts";
import {
  CANARY_CALL_MS,
  CANARY_PAYLOAD_BYTES,
  CANARY_RECORDS,
  QUARANTINE_MS,
} from "../../limits.ts";
import type { Logger } from "../../log.ts";
import type { SidecarCounters } from "../../metrics.ts";
import { jitterMs, nowMs, randomToken, sleep } from "../../time.ts";
import { OwnRecords } from "./own-records.ts";
import type { VaultClients } from "./pools.ts";

export interface CanaryOptions {
  /** 0: nothing is ever checked. */
  intervalMs: number;
  /** Memory that this process maps is no other party: its records are checked when they are read. */
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
  /** Made with the first check. */
  readonly #records = new Map<RecordClass, OwnRecords>();
  readonly #quarantinedAtMs = new Map<VaultClient, number>();
  #turn = 0;

  constructor(options: CanaryOptions) {
    this.#options = options;
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
    for (const records of this.#records.values()) records.close();
  }

  async #checkAll(): Promise<void> {
    this.#turn += 1;
    const { kv, ssm } = this.#options.vaults;
    for (const client of [...kv, ...ssm].filter(isRemote)) {
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
    const records = await this.#recordsOf(client.name);
    const expected = records.all[this.#turn % records.all.length];
    if (expected === undefined) return;
    const { counters } = this.#options;
    const call = { client, deadlineMs: CANARY_CALL_MS, signal: this.#closing.signal };
    const [returned] = await records.fetch(call, [expected]);
    counters.add("canary_checks");
    if (returned === "other") this.#quarantine(client);
    if (returned !== "none") return;
    counters.add("canary_missing");
    await records.store(call);
  }

  async #recordsOf(name: RecordClass): Promise<OwnRecords> {
    const known = this.#records.get(name);
    if (known !== undefined) return known;
    const space = this.#namespace;
    const made = await OwnRecords.open(space, name, CANARY_RECORDS, CANARY_PAYLOAD_BYTES);
    this.#records.set(name, made);
    return made;
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
