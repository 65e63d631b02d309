// Owns which of its class's vaults a block lies on, as this sidecar sees them: placed by the ring, passed on while the owner is down.
import { HASH_BYTES } from "../../block.ts";
import type { RecordClass } from "../../block.ts";
import type { VaultClient } from "../../client/vault-client.ts";
import { anchorOf, Placement } from "../../pool/placement.ts";

/** Of each class, in the order of the configuration; empty: its look-ups miss and its saves are dropped, counted. */
export type VaultClients = Readonly<Record<RecordClass, readonly VaultClient[]>>;

/** Of a vault alone: owner 0 of everything. */
const ALONE = new Uint8Array(0);

export class Pool {
  readonly #clients: readonly VaultClient[];
  readonly #placement: Placement;
  /** A state is needed alone, a block of attention with those before it. */
  readonly #isAlone: boolean;
  readonly #isDown = (vault: number): boolean => this.#clients[vault]?.isOpen ?? true;

  constructor(recordClass: RecordClass, clients: readonly VaultClient[]) {
    this.#clients = clients;
    this.#isAlone = recordClass === "ssm";
    this.#placement = new Placement(clients.map(({ address }) => address));
  }

  get count(): number {
    return this.#clients.length;
  }

  /** By block of a prompt, whose hashes are given from its first block on; beyond its end: 0. */
  ownersOf(hashes: Buffer): Uint8Array {
    if (this.count <= 1) return ALONE;
    return this.#placement.ownersOf(hashes, this.#isAlone, this.#isDown);
  }

  /** Of one block; `anchor`: hash of the first one of its run. */
  ownerOf(hash: Buffer, anchor: Buffer): number {
    return this.#placement.ownerOf(this.#isAlone ? hash : anchor, this.#isDown);
  }

  /** Where block `index` of a prompt lies while all vaults are up. */
  homeOf(hashes: Buffer, index: number): number {
    const at = this.#isAlone ? index : anchorOf(index);
    const anchor = hashes.subarray(at * HASH_BYTES, (at + 1) * HASH_BYTES);
    return this.#placement.ownerOf(anchor, () => false);
  }
}

export type Pools = Readonly<Record<RecordClass, Pool>>;

export function openPools(vaults: VaultClients): Pools {
  return { kv: new Pool("kv", vaults.kv), ssm: new Pool("ssm", vaults.ssm) };
}
