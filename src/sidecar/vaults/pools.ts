// Owns which of its class's vaults a block lies on, as this sidecar sees them: placed by the ring, passed on while the owner is down, and in memory of this machine, too.
import { HASH_BYTES } from "../../block.ts";
import type { RecordClass } from "../../block.ts";
import type { Vault } from "../../client/vault.ts";
import { CAPACITY_STEPS, VIEW_KEPT_MS } from "../../limits-pool.ts";
import { anchorOf, NO_VAULT, Placement } from "../../pool/placement.ts";
import type { Home } from "../../pool/placement.ts";
import { nowMs } from "../../time.ts";

/** Of each class, in the order of the configuration; empty: its look-ups miss and its saves are dropped, counted. */
export type VaultClients = Readonly<Record<RecordClass, readonly Vault[]>>;

/** By block of a prompt; beyond the end: vault 0, and no other. */
export interface Places {
  owners: Uint8Array;
  /** Where else a block may lie, by block; NO_VAULT: nowhere. The most likely list first. */
  others: readonly Uint8Array[];
}

/** Of a vault alone: owner 0 of everything. */
const ALONE: Places = { owners: new Uint8Array(0), others: [] };

export interface PoolOptions {
  /** May grow. */
  clients: readonly Vault[];
  /** Each record lies on two of them. */
  isDouble?: boolean;
  /** False for one that has left: nothing is stored there any more. */
  isMember?(client: Vault): boolean;
  /** True for one that has left and is not asked any more. */
  isForgotten?(client: Vault): boolean;
}

export class Pool {
  readonly #clients: readonly Vault[];
  readonly #isMember: (client: Vault) => boolean;
  /** A state is needed alone, a block of attention with those before it. */
  readonly #isAlone: boolean;
  readonly #isDouble: boolean;
  #names: readonly string[];
  #weights: readonly number[];
  #placement: Placement;
  #shares: Map<number, number> | null = null;
  /** What was true before the last change: machines that see it later, or saw it sooner, are understood. */
  #before: { placement: Placement; untilMs: number } | null = null;
  /** As long as vaults are being emptied: as if they were not. What they had owned is asked of them, too, until it has moved. */
  #undrained: { of: string; placement: Placement } | null = null;
  readonly #shared: number;
  readonly #isForgotten: (client: Vault) => boolean;
  readonly #isDown = (vault: number): boolean => {
    const client = this.#clients[vault];
    return client === undefined || client.isOpen || this.#isForgotten(client);
  };

  constructor(recordClass: RecordClass, options: PoolOptions) {
    const { clients, isDouble = false, isMember = (): boolean => true } = options;
    this.#clients = clients;
    this.#isMember = isMember;
    this.#isForgotten = options.isForgotten ?? ((): boolean => false);
    this.#isAlone = recordClass === "ssm";
    this.#isDouble = isDouble;
    const shared = clients.findIndex(({ tier }) => tier === "shared");
    this.#shared = shared < 0 ? NO_VAULT : shared;
    this.#names = clients.map(({ address }) => address);
    this.#weights = clients.map((_, vault) => Number(vault !== this.#local));
    this.#placement = new Placement(this.#names, this.#weights);
  }

  get count(): number {
    return this.#clients.length;
  }

  /** Memory of this machine, beside the members: it owns nothing, and may hold anything. NO_VAULT: there is none, or nothing else. */
  get #local(): number {
    return this.count > 1 ? this.#shared : NO_VAULT;
  }

  /** Members store records twice. */
  get isDouble(): boolean {
    return this.#isDouble && this.count - Number(this.#local !== NO_VAULT) > 1;
  }

  /** Where records of all members are kept, too; NO_VAULT: there is no such place, or it is down. */
  get local(): number {
    return this.#local === NO_VAULT || this.#isDown(this.#local) ? NO_VAULT : this.#local;
  }

  /** Of the blocks of a prompt, whose hashes are given from its first block on. */
  placesOf(hashes: Buffer): Places {
    if (this.count <= 1) return ALONE;
    this.#look();
    const lists = this.#placesOnRing(hashes);
    const { local } = this;
    if (local !== NO_VAULT) lists.unshift(new Uint8Array(hashes.length / HASH_BYTES).fill(local));
    const [owners = ALONE.owners, ...others] = lists;
    return { owners, others };
  }

  /** The most likely list first. */
  #placesOnRing(hashes: Buffer): Uint8Array[] {
    const { owners, seconds } = this.#placement.homesOf(hashes, this.#isAlone, this.#isDown);
    const lists = this.isDouble ? [owners, seconds] : [owners];
    const before = this.#placementBefore();
    if (before === null) return lists;
    const old = before.homesOf(hashes, this.#isAlone, this.#isDown).owners;
    for (const [index, vault] of old.entries()) {
      if (lists.some((list) => list[index] === vault) || this.#isDown(vault)) old[index] = NO_VAULT;
    }
    return [...lists, old];
  }

  /** Of one block that is to be stored; `anchor`: hash of the first one of its run. */
  homeOf(hash: Buffer, anchor: Buffer): Home {
    this.#look();
    const home = this.#placement.homeOf(this.#isAlone ? hash : anchor, this.#isDown);
    return this.isDouble ? home : { ...home, second: NO_VAULT };
  }

  /** Where block `index` of a prompt lies while all vaults are up. */
  ownerInPeace(hashes: Buffer, index: number): number {
    const at = this.#isAlone ? index : anchorOf(index);
    const anchor = hashes.subarray(at * HASH_BYTES, (at + 1) * HASH_BYTES);
    return this.#placement.homeOf(anchor, () => false).owner;
  }

  /** About which share of all runs a vault owns. */
  shareOf(vault: number): number {
    this.#look();
    this.#shares ??= this.#placement.shares();
    return this.#shares.get(vault) ?? 0;
  }

  /** Takes in what vaults have said of their capacity since. */
  #look(): void {
    const names = this.#clients.map(({ address }) => address);
    this.#lookAtDrained(names);
    const weights = this.#weightsNow();
    const isSame = names.every(
      (name, vault) => name === this.#names[vault] && weights[vault] === this.#weights[vault],
    );
    if (isSame) return;
    // An index that is another vault's now says nothing of the one before.
    const old = this.#names.map((name, vault) =>
      name === names[vault] ? this.#weights[vault] : 0,
    );
    if (old.some((weight) => weight !== undefined && weight > 0)) {
      const placement = new Placement(
        this.#names,
        old.map((weight = 0) => weight),
      );
      this.#before = { placement, untilMs: nowMs() + VIEW_KEPT_MS };
    }
    this.#names = names;
    this.#weights = weights;
    this.#placement = new Placement(names, weights);
    this.#shares = null;
  }

  #lookAtDrained(names: readonly string[]): void {
    if (!this.#clients.some((client) => client.isDraining && this.#isMember(client))) {
      this.#undrained = null;
      return;
    }
    const weights = this.#weightsNow(true);
    const of = JSON.stringify([names, weights]);
    if (this.#undrained?.of !== of)
      this.#undrained = { of, placement: new Placement(names, weights) };
  }

  /**
   * Alike until each member that is up has said its capacity: every sidecar begins with that view, and goes on from it to the same one.
   * One that is down weighs as others do on average, which is of no account: what it would own lies elsewhere. One that is being
   * emptied owns nothing, unless all are.
   */
  #weightsNow(isUndrained = false): number[] {
    const members = this.#clients.map(
      (client, vault) => vault !== this.#local && this.#isMember(client),
    );
    const takers = this.#clients.map(
      ({ isDraining }, vault) => members[vault] === true && !isDraining,
    );
    const isIn = isUndrained || !takers.includes(true) ? members : takers;
    const alike = isIn.map(Number);
    const isUnsaid = ({ capacityBytes, isOpen }: Vault): boolean =>
      capacityBytes === null && !isOpen;
    if (this.#clients.some((client, vault) => isIn[vault] === true && isUnsaid(client)))
      return alike;
    const steps = this.#clients.map(({ capacityBytes }) => stepOf(capacityBytes ?? 0));
    const said = steps.filter((step, vault) => step > 0 && isIn[vault] === true);
    if (said.every((step) => step === said[0])) return alike;
    const average = said.reduce((sum, step) => sum + step, 0) / said.length;
    return steps.map((step, vault) => (isIn[vault] === true ? step || average : 0));
  }

  #placementBefore(): Placement | null {
    if (this.#undrained !== null) return this.#undrained.placement;
    if (this.#before !== null && nowMs() > this.#before.untilMs) this.#before = null;
    return this.#before?.placement ?? null;
  }
}

/** In GiB. */
function stepOf(bytes: number): number {
  if (bytes <= 0) return 0;
  const steps = Math.round(Math.log2(bytes / 2 ** 30) * CAPACITY_STEPS);
  return 2 ** (steps / CAPACITY_STEPS);
}

export type Pools = Readonly<Record<RecordClass, Pool>>;

export function openPools(vaults: VaultClients, options: Omit<PoolOptions, "clients"> = {}): Pools {
  return {
    kv: new Pool("kv", { ...options, clients: vaults.kv }),
    ssm: new Pool("ssm", { ...options, clients: vaults.ssm }),
  };
}
