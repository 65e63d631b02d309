// Owns the members of the pools: present vaults, vaults that left and are still asked for a while, and the index of each.
import type { RecordClass } from "../../base/block.ts";
import { POOL_CLIENTS_MAX, POOL_VAULTS_MAX, VIEW_KEPT_MS } from "../../base/limits/pool.ts";
import type { Logger } from "../../base/log.ts";
import { nowMs } from "../../base/time.ts";
import type { BlockStore } from "../../client/source.ts";
import { Link } from "../../cost/link.ts";
import type { SourceKind } from "../../discovery/source.ts";
import type { VaultClients } from "./pools.ts";
import { LookupGate, openGates, openLinks } from "./vaults.ts";

/** Names the vaults that belong to pools, and connects to them. */
export interface MemberSource<Store extends BlockStore = BlockStore> {
  /** Calls `onList` with complete, non-empty lists of addresses, each with its source. Called once. */
  follow(onList: (recordClass: RecordClass, list: ReadonlyMap<string, SourceKind>) => void): void;
  connect(recordClass: RecordClass, address: string): Store;
  close(): void;
}

export interface PoolMembersOptions {
  /** Vaults known from the start. */
  vaults: VaultClients;
  /** null: no others ever join. */
  source: MemberSource | null;
  logger: Logger;
}

/** The lists of clients, links and gates are shared objects, so that every holder sees newcomers. */
export class PoolMembers {
  readonly #options: PoolMembersOptions;
  readonly clients: Record<RecordClass, BlockStore[]>;
  readonly links: Record<RecordClass, Link[]>;
  readonly gates: Record<RecordClass, LookupGate[]>;
  /** Time at which each former member left. */
  readonly #leftMs = new Map<BlockStore, number>();
  /** Former members that are closed and not asked any more. */
  readonly #forgotten = new WeakSet<BlockStore>();
  readonly #own = new Set<BlockStore>();
  readonly #sources: Record<RecordClass, ReadonlyMap<string, SourceKind>> = {
    kv: new Map(),
    ssm: new Map(),
  };
  #onJoin: (client: BlockStore, index: number) => void = () => {};

  constructor(options: PoolMembersOptions) {
    this.#options = options;
    const { vaults } = options;
    this.clients = { kv: [...vaults.kv], ssm: [...vaults.ssm] };
    const links = openLinks(vaults);
    this.links = { kv: [...links.kv], ssm: [...links.ssm] };
    const gates = openGates(vaults, links);
    this.gates = { kv: [...gates.kv], ssm: [...gates.ssm] };
  }

  /** True for a member; a former one is only asked for blocks it may still hold. */
  isMember(client: BlockStore): boolean {
    return !this.#leftMs.has(client);
  }

  isForgotten(client: BlockStore): boolean {
    return this.#forgotten.has(client);
  }

  /** Forgets the former members of a class after a flush, because they were not told and may hold flushed blocks. */
  forgetLeavers(recordClass: RecordClass): void {
    for (const client of this.#leftMs.keys()) {
      if (client.name === recordClass) this.#forget(client);
    }
  }

  #forget(client: BlockStore): void {
    this.#forgotten.add(client);
    client.close();
  }

  /** Source that named the vault. */
  sourceOf({ name, address }: BlockStore): SourceKind {
    return this.#sources[name].get(address) ?? "static";
  }

  /** Follows the source until closed. `onJoin`: a vault took an index, which may have been another's before. */
  follow(onJoin: (client: BlockStore, index: number) => void): void {
    this.#onJoin = onJoin;
    this.#options.source?.follow((recordClass, list) => this.#take(recordClass, list));
  }

  close(): void {
    this.#options.source?.close();
    for (const client of this.#own) client.close();
  }

  #take(recordClass: RecordClass, given: ReadonlyMap<string, SourceKind>): void {
    const { logger } = this.#options;
    this.#sources[recordClass] = given;
    const all = [...given.keys()].toSorted();
    const list = new Set(all.slice(0, POOL_VAULTS_MAX));
    if (all.length > list.size) {
      const left = all.length - list.size;
      logger.warn({ class: recordClass, left }, `a pool has ${POOL_VAULTS_MAX} vaults at most`);
    }
    const clients = this.clients[recordClass];
    for (const [index, client] of clients.entries()) {
      if (list.delete(client.address)) {
        if (!this.#leftMs.delete(client)) continue;
        if (this.isForgotten(client)) this.#connect(recordClass, index, client.address);
        else this.#say(client, "vault has come back to the pool");
      } else if (this.isMember(client)) {
        this.#leftMs.set(client, nowMs());
        setTimeout(() => this.#clear(), VIEW_KEPT_MS + 1).unref();
        this.#say(client, "vault has left the pool; for a while it is asked for blocks it holds");
      }
    }
    for (const address of list) this.#join(recordClass, address);
    this.#clear();
  }

  #join(recordClass: RecordClass, address: string): void {
    const index = this.#freeIndex(recordClass);
    if (index !== null) this.#connect(recordClass, index, address);
  }

  #connect(recordClass: RecordClass, index: number, address: string): void {
    const { source } = this.#options;
    if (source === null) return;
    const before = this.clients[recordClass][index];
    before?.close();
    if (before !== undefined) this.#own.delete(before);
    const client = source.connect(recordClass, address);
    const link = new Link(client);
    this.#own.add(client);
    this.clients[recordClass][index] = client;
    this.links[recordClass][index] = link;
    this.gates[recordClass][index] = new LookupGate(client, link);
    this.#onJoin(client, index);
    this.#say(client, "vault has joined the pool");
  }

  /** Returns a new index while there are any, then the one of the vault that left first. */
  #freeIndex(recordClass: RecordClass): number | null {
    const clients = this.clients[recordClass];
    if (clients.length < POOL_CLIENTS_MAX) return clients.length;
    const left = [...this.#leftMs.keys()].find((client) => client.name === recordClass);
    if (left === undefined) return null;
    this.#leftMs.delete(left);
    return clients.indexOf(left);
  }

  /** Forgets vaults that left long ago. */
  #clear(): void {
    for (const [client, leftMs] of this.#leftMs) {
      if (nowMs() - leftMs > VIEW_KEPT_MS) this.#forget(client);
    }
  }

  #say({ address, name }: BlockStore, what: string): void {
    this.#options.logger.info({ vault: address, class: name }, what);
  }
}
