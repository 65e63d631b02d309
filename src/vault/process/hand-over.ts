// Owns the hand-over of hot and kept records to the pool's other vaults, before a vault frees its memory for the machine's user.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { classesOf } from "../../base/block.ts";
import type { RecordClass, VaultClass } from "../../base/block.ts";
import {
  YIELD_DOOR_MS,
  YIELD_GIVE_BYTES_PER_S,
  YIELD_GIVE_MS,
  YIELD_HELLO_MS,
} from "../../base/limits/user.ts";
import type { Logger } from "../../base/log.ts";
import { sleep } from "../../base/time.ts";
import { VaultClient } from "../../client/vault/vault-client.ts";
import type { Config } from "../../config/config.ts";
import type { Gossip } from "../../discovery/gossip.ts";
import { Drain } from "../../moving/drain.ts";
import { openPool, redundancyOf } from "../../sidecar/vaults/pools.ts";
import type { PausableVault } from "../server.ts";
import type { HandOver } from "../yielding.ts";

export interface HandingOverOptions {
  redundancy: Config["cluster"]["redundancy"];
  recordClass: VaultClass;
  /** Gossip of the vault that runs now; null: it knows no other vaults. */
  gossip(): Gossip | null;
  logger: Logger;
}

/** Another vault, and its last flush before this vault paused. */
interface Target {
  client: VaultClient;
  flushed: number;
}

export class HandingOver implements HandOver {
  readonly #options: HandingOverOptions;
  #targets: Target[] = [];

  constructor(options: HandingOverOptions) {
    this.#options = options;
  }

  async prepare(): Promise<void> {
    this.close();
    const asked = this.#clients();
    const said: Target[] = [];
    const saying = asked.map(async (client) => {
      await client.hello(YIELD_HELLO_MS);
      said.push({ client, flushed: client.flushes.number });
    });
    await Promise.race([Promise.allSettled(saying), sleep(YIELD_HELLO_MS)]);
    // A vault that answers later gets nothing, because this one may miss flushes from here on.
    this.#targets = [...said];
    const ready = new Set(this.#targets.map(({ client }) => client));
    for (const client of asked) if (!ready.has(client)) client.close();
  }

  async run(vault: PausableVault, signal: AbortSignal): Promise<void> {
    if (this.#targets.length === 0) return;
    const folder = mkdtempSync(join(tmpdir(), "tierkv-door-"));
    const path = join(folder, "door");
    const door = await vault.door(path);
    try {
      for (const name of classesOf(this.#options.recordClass))
        await this.#give(name, vault.address, `unix:${path}`, signal);
    } finally {
      await door.close();
      rmSync(folder, { recursive: true, force: true });
    }
  }

  close(): void {
    for (const { client } of this.#targets) client.close();
    this.#targets = [];
  }

  #clients(): VaultClient[] {
    const { gossip, logger, recordClass } = this.#options;
    const others = gossip()?.others ?? [];
    return classesOf(recordClass).flatMap((name) =>
      others
        .filter(({ entry }) => classesOf(entry.class).includes(name))
        .map(({ entry: { address }, security }) => {
          return new VaultClient({ address, name, logger, lanes: 1, security });
        }),
    );
  }

  async #give(
    name: RecordClass,
    address: string,
    door: string,
    signal: AbortSignal,
  ): Promise<void> {
    const { redundancy, logger } = this.#options;
    const targets = this.#targets.filter(({ client }) => client.name === name);
    if (targets.length === 0) return;
    // The door is a socket of this process that no configuration names.
    const quiet = logger.child({}, { level: "warn" });
    const source = new VaultClient({ address: door, name, logger: quiet, lanes: 1 });
    try {
      await source.hello(YIELD_DOOR_MS);
      const others = targets.map(({ client }) => client);
      // Placement counts this vault as a member that is down, like sidecars do while it is silent.
      const { capacityBytes } = source;
      const own = {
        address,
        tier: "vault",
        capacityBytes,
        isDraining: false,
        isDown: true,
      } as const;
      const drain = new Drain({
        source,
        clients: [source, ...others],
        pool: openPool(name, [own, ...others], redundancyOf(redundancy)),
        rate: YIELD_GIVE_BYTES_PER_S,
        hot: {
          known: new Map(targets.map(({ client, flushed }) => [client, flushed])),
          signal: AbortSignal.any([signal, AbortSignal.timeout(YIELD_GIVE_MS)]),
        },
      });
      try {
        await drain.run();
      } finally {
        const { moved, present, left } = drain.drained;
        logger.info(
          { class: name, moved, present, left },
          "records in use were sent to other vaults",
        );
      }
    } finally {
      source.close();
    }
  }
}
