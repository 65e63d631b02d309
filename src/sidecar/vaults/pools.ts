// Owns the placement of blocks on a class's vaults, as this sidecar sees it: by runs, with stand-ins for down vaults, and shared memory.
import { HASH_BYTES } from "../../base/block.ts";
import type { RecordClass } from "../../base/block.ts";
import { CAPACITY_STEPS, VIEW_KEPT_MS, VIEWS_KEPT_MAX } from "../../base/limits/pool.ts";
import { nowMs } from "../../base/time.ts";
import type { BlockStore } from "../../client/source.ts";
import { anchorOf, NO_VAULT, Placement } from "../../pool/placement.ts";
import type { Home } from "../../pool/placement.ts";
import { Absences } from "./absences.ts";

/** Vaults of each class, in the order of the configuration; empty: look-ups miss and saves are dropped, counted. */
export type VaultClients = Readonly<Record<RecordClass, readonly BlockStore[]>>;

/** Vault indexes per block of a prompt; beyond the end: vault 0, and no other. */
export interface Places {
  owners: Uint8Array;
  /** Other vaults per block, likeliest list first; NO_VAULT: none. */
  others: readonly Uint8Array[];
  /** Lists of `others` with former owners: before a change, or stand-ins for a vault that is back. */
  before?: readonly Uint8Array[];
}

/** Places with a single vault: owner 0 of everything. */
const ALONE: Places = { owners: new Uint8Array(0), others: [] };

/** Properties of a vault that placement depends on. */
export type PlacedOn = Pick<
  BlockStore,
  "address" | "tier" | "capacityBytes" | "isDraining" | "isDown"
>;

export interface PoolOptions {
  /** The list may grow. */
  clients: readonly PlacedOn[];
  /** True: each record lies on two vaults. */
  isDouble?: boolean;
  /** Returns false for a vault that has left: no more blocks are stored there. */
  isMember?(client: PlacedOn): boolean;
  /** Returns true for a vault that has left and is not asked any more. */
  isForgotten?(client: PlacedOn): boolean;
}

export class Pool {
  readonly #clients: readonly PlacedOn[];
  readonly #isMember: (client: PlacedOn) => boolean;
  /** True for states, which are needed alone; blocks of attention need the ones before them. */
  readonly #isAlone: boolean;
  readonly #isDouble: boolean;
  #names: readonly string[];
  #weights: readonly number[];
  #placement: Placement;
  #shares: Map<number, number> | null = null;
  /** Earlier placements, newest first: other machines may still use them, and records may not have moved yet. */
  #before: { placement: Placement; untilMs: number }[] = [];
  /** While vaults are being drained: the placement as if they were not, because they still hold what they owned. */
  #undrained: { of: string; placement: Placement } | null = null;
  /** Vaults that are back share their blocks with the stand-ins of their absence. */
  readonly #absences = new Absences();
  readonly #shared: number;
  readonly #isForgotten: (client: PlacedOn) => boolean;
  readonly #isDown = (vault: number): boolean => {
    const client = this.#clients[vault];
    return client === undefined || client.isDown || this.#isForgotten(client);
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
    this.#placement = this.#place(this.#names, this.#weights);
  }

  #place(names: readonly string[], weights: readonly number[]): Placement {
    return new Placement(names, weights, this.#isAlone ? "whole" : "parts");
  }

  get count(): number {
    return this.#clients.length;
  }

  /** Shared memory of this machine beside the members: it owns nothing and may hold anything. NO_VAULT: none, or it is alone. */
  get #local(): number {
    return this.count > 1 ? this.#shared : NO_VAULT;
  }

  /** True where members store records twice. */
  get isDouble(): boolean {
    return this.#isDouble && this.count - Number(this.#local !== NO_VAULT) > 1;
  }

  /** Shared memory that also keeps all members' records; NO_VAULT: none, or it is down. */
  get local(): number {
    return this.#local === NO_VAULT || this.#isDown(this.#local) ? NO_VAULT : this.#local;
  }

  /** Returns the places of a prompt's blocks; `hashes` begin with its first block. */
  placesOf(hashes: Buffer): Places {
    if (this.count <= 1) return ALONE;
    this.#look();
    const { lists, before } = this.#placesOnRing(hashes);
    const { local } = this;
    if (local !== NO_VAULT) lists.unshift(new Uint8Array(hashes.length / HASH_BYTES).fill(local));
    const [owners = ALONE.owners, ...others] = lists;
    return { owners, others, before };
  }

  /** True where runs are spread over several vaults. */
  get isCut(): boolean {
    return !this.#isAlone;
  }

  /** Returns the lists of owners, likeliest first, and the former ones among them. */
  #placesOnRing(hashes: Buffer): { lists: Uint8Array[]; before: Uint8Array[] } {
    const { isDouble } = this;
    const { owners, seconds } = this.#placement.homesOf(hashes, this.#isDown, isDouble);
    const lists = isDouble ? [owners, seconds] : [owners];
    const before: Uint8Array[] = [];
    for (const old of this.#homesBefore(hashes)) {
      let isNew = false;
      for (const [index, vault] of old.entries()) {
        if (lists.some((list) => list[index] === vault) || this.#isDown(vault))
          old[index] = NO_VAULT;
        else isNew = true;
      }
      if (!isNew) continue;
      const apart = before.find((list) => isApart(list, old));
      if (apart !== undefined) {
        for (const [index, vault] of old.entries()) if (vault !== NO_VAULT) apart[index] = vault;
        continue;
      }
      before.push(old);
      lists.push(old);
    }
    return { lists, before };
  }

  *#homesBefore(hashes: Buffer): Generator<Uint8Array> {
    for (const placement of this.#placementsBefore())
      yield placement.homesOf(hashes, this.#isDown, false).owners;
    for (const away of this.#absences.recent()) {
      const wasDown = (vault: number): boolean => away.has(this.#names[vault] ?? "");
      yield this.#placement.homesOf(hashes, wasDown, false).owners;
    }
  }

  /** Returns where one block is to be stored; `anchor`: hash of its run's first block, `index`: its place in the prompt. */
  homeOf(hash: Buffer, anchor: Buffer, index = 0): Home {
    this.#look();
    const home = this.#placement.homeOf(this.#isAlone ? hash : anchor, this.#isDown, index);
    return this.isDouble ? home : { ...home, second: NO_VAULT };
  }

  /** Returns the owner of block `index` of a prompt while all vaults are up. */
  ownerInPeace(hashes: Buffer, index: number): number {
    const at = this.#isAlone ? index : anchorOf(index);
    const anchor = hashes.subarray(at * HASH_BYTES, (at + 1) * HASH_BYTES);
    return this.#placement.homeOf(anchor, () => false, index).owner;
  }

  /** Returns about which share of all runs a vault owns. */
  shareOf(vault: number): number {
    this.#look();
    this.#shares ??= this.#placement.shares();
    return this.#shares.get(vault) ?? 0;
  }

  /** Updates the placement from the vaults' present members, capacities and states. */
  #look(): void {
    const names = this.#clients.map(({ address }) => address);
    this.#absences.look(names.filter((_name, vault) => this.#isDown(vault)));
    this.#lookAtDrained(names);
    const weights = this.#weightsNow();
    const isSame = names.every(
      (name, vault) => name === this.#names[vault] && weights[vault] === this.#weights[vault],
    );
    if (isSame) return;
    // An index that another vault has taken over says nothing of the one before.
    const old = this.#names.map((name, vault) =>
      name === names[vault] ? this.#weights[vault] : 0,
    );
    if (old.some((weight) => weight !== undefined && weight > 0)) {
      const placement = this.#place(
        this.#names,
        old.map((weight = 0) => weight),
      );
      const view = { placement, untilMs: nowMs() + VIEW_KEPT_MS };
      this.#before = [view, ...this.#before].slice(0, VIEWS_KEPT_MAX);
    }
    this.#names = names;
    this.#weights = weights;
    this.#placement = this.#place(names, weights);
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
      this.#undrained = { of, placement: this.#place(names, weights) };
  }

  /**
   * Returns the vaults' weights: equal until each member that is up has said its capacity, so that all sidecars share each view. A
   * down member weighs the average, as its blocks lie elsewhere. One being drained owns nothing, unless all are.
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
    const isUnsaid = ({ capacityBytes, isDown }: PlacedOn): boolean =>
      capacityBytes === null && !isDown;
    if (this.#clients.some((client, vault) => isIn[vault] === true && isUnsaid(client)))
      return alike;
    const steps = this.#clients.map(({ capacityBytes }) => stepOf(capacityBytes ?? 0));
    const said = steps.filter((step, vault) => step > 0 && isIn[vault] === true);
    if (said.every((step) => step === said[0])) return alike;
    const average = said.reduce((sum, step) => sum + step, 0) / said.length;
    return steps.map((step, vault) => (isIn[vault] === true ? step || average : 0));
  }

  #placementsBefore(): Placement[] {
    if (this.#undrained !== null) return [this.#undrained.placement];
    const now = nowMs();
    this.#before = this.#before.filter(({ untilMs }) => now <= untilMs);
    return this.#before.map(({ placement }) => placement);
  }
}

/** True where no block is in both lists, so that one list can hold them. */
const isApart = (one: Uint8Array, other: Uint8Array): boolean =>
  one.every((vault, index) => vault === NO_VAULT || other[index] === NO_VAULT);

/** Rounds a capacity to a step, in GiB. */
function stepOf(bytes: number): number {
  if (bytes <= 0) return 0;
  const steps = Math.round(Math.log2(bytes / 2 ** 30) * CAPACITY_STEPS);
  return 2 ** (steps / CAPACITY_STEPS);
}

export type Pools = Readonly<Record<RecordClass, Pool>>;

export function openPools(vaults: VaultClients, options: Omit<PoolOptions, "clients"> = {}): Pools {
  return { kv: openPool("kv", vaults.kv, options), ssm: openPool("ssm", vaults.ssm, options) };
}

export function openPool(
  recordClass: RecordClass,
  clients: readonly PlacedOn[],
  options: Omit<PoolOptions, "clients">,
): Pool {
  return new Pool(recordClass, { ...options, clients });
}

/** Options of `[cluster] redundancy`. */
export function redundancyOf(redundancy: "none" | "copies:2"): Pick<PoolOptions, "isDouble"> {
  return { isDouble: redundancy === "copies:2" };
}
