// Owns the import of a bundle: checks every byte before it stores anything, then stores blocks from the prompt's first on.
import type { RecordClass } from "../../base/block.ts";
import { hasBit } from "../../base/block.ts";
import { KEYS_MAX, STORE_TIMEOUT_MS } from "../../base/limits/general.ts";
import { outboxDrop, outboxPut } from "../../base/native.ts";
import { UNCOUNTED } from "../../client/source.ts";
import type { VaultClient } from "../../client/vault/vault-client.ts";
import { absentAt, keysOf, Outcomes, store } from "../../moving/copies.ts";
import { Anchors, hashOf, rowsOf } from "../../moving/rows.ts";
import type { Row } from "../../moving/rows.ts";
import type { Pool } from "../../sidecar/vaults/pools.ts";
import { LayerSeal, openLayer } from "./layer.ts";
import type { Layout } from "./layout.ts";
import { openConfig, readManifest } from "./manifest.ts";
import type { BundleConfig, Layer, Opened } from "./manifest.ts";
import type { Clients } from "./selection.ts";

export interface ImportOptions {
  layout: Layout;
  opened: Opened;
  /** Key that opens a sealed bundle. */
  secret: Buffer | null;
  clients: Clients;
  pools: Readonly<Record<RecordClass, Pool>>;
  /** Seconds to keep the records from eviction; 0: not kept. */
  keepS: number;
  onProgress(done: number, all: number): void;
}

export interface Imported {
  stored: number;
  /** Records that their vaults held already. */
  present: number;
  /** Records not stored, by reason. The import stops after the first layer that has any. */
  failed: Record<string, number>;
  /** Blocks that the vaults hold now, from the prompt's first on without a hole. */
  blocks: number;
}

/** Throws BUNDLE_REFUSED unless one of the `trusted` keys signed it. */
export function openBundle(layout: Layout, trusted: readonly string[]): Opened {
  const manifest = readManifest(layout.manifest(), layout.path);
  return openConfig(manifest, layout.read(manifest.config), trusted, layout.path);
}

interface Read {
  rows: Row[];
  records: Buffer[];
}

export class Importer {
  readonly #options: ImportOptions;
  readonly #config: BundleConfig;
  readonly #seal: LayerSeal | null;
  readonly #rows: Record<RecordClass, Row[]> = { kv: [], ssm: [] };
  #anchors = new Anchors([]);
  readonly #stored: Map<VaultClient, Row[]> = new Map();

  constructor(options: ImportOptions) {
    this.#options = options;
    this.#config = options.opened.config;
    const { salt, seal } = this.#config;
    const secret = seal === "bundle" ? options.secret : null;
    this.#seal = secret === null ? null : new LayerSeal(secret, Buffer.from(salt, "hex"));
  }

  /** Checks every layer. Throws BUNDLE_REFUSED for the first defect. */
  check(): void {
    const { layout, onProgress } = this.#options;
    const { seal, layers, records } = this.#config;
    if (seal === "bundle" && this.#seal === null) {
      throw layout.refused("it is sealed: name the file of its key with --seal");
    }
    for (const [at, layer] of layers.entries()) {
      this.#rows[layer.class].push(...this.#read(layer, at).rows);
      onProgress(at + 1, 2 * layers.length);
    }
    this.#anchors = new Anchors(this.#rows.kv);
    const { kv, ssm } = this.#rows;
    if (kv.length + ssm.length !== records) throw layout.refused("records are missing in it");
  }

  /** Stores the records that vaults lack; call it after `check`. */
  async run(): Promise<Imported> {
    const { clients, onProgress } = this.#options;
    const { model, layers } = this.#config;
    if (model !== "") {
      const all = [...clients.kv, ...clients.ssm];
      const namespace = this.#namespace;
      await Promise.all(all.map((client) => client.nameModel(namespace, model, STORE_TIMEOUT_MS)));
    }
    const result: Imported = { stored: 0, present: 0, failed: {}, blocks: 0 };
    for (const [at, layer] of layers.entries()) {
      const outcomes = await this.#give(layer, this.#read(layer, at));
      result.stored += outcomes.stored;
      result.present += outcomes.present;
      for (const reason of outcomes.failed) {
        result.failed[reason] = (result.failed[reason] ?? 0) + 1;
      }
      onProgress(layers.length + at + 1, 2 * layers.length);
      if (outcomes.failed.length > 0) break;
    }
    await this.#keep();
    result.blocks = await this.#held();
    return result;
  }

  get #namespace(): Buffer {
    return Buffer.from(this.#config.namespace, "hex");
  }

  /** Reads and checks a layer, again each time, because the directory may have changed. */
  #read(layer: Layer, number: number): Read {
    const { layout } = this.#options;
    const bytes = layout.read(layer);
    const clear = this.#seal === null ? bytes : this.#seal.open(bytes, number);
    if (clear === null) throw layout.refused("the key of --seal does not open it");
    const opened = openLayer(clear);
    const rows = rowsOf(opened?.rows ?? Buffer.alloc(0));
    const records: Buffer[] = [];
    let at = 0;
    for (const row of rows) {
      records.push(opened?.records.subarray(at, at + row.bytes) ?? Buffer.alloc(0));
      at += row.bytes;
    }
    if (opened === null || at !== opened.records.length) {
      throw layout.refused(`layer ${number} is none of records`);
    }
    return { rows, records };
  }

  async #give(
    { class: name }: Layer,
    { rows, records }: Read,
  ): Promise<{ stored: number; present: number; failed: string[] }> {
    const outcomes = new Outcomes();
    const ids = new Map<Row, number>();
    const homes = this.#homesOf(name, rows, outcomes);
    try {
      const gifts = [...homes].map(async ([client, own]) => {
        const known = client.flushes.number;
        const ask = (): Promise<Row[]> => absentAt(client, this.#namespace, own);
        const absent = await outcomes.orFail(own, ask, []);
        const items = absent.map((row) => {
          const id = ids.get(row) ?? outboxPut(records[rows.indexOf(row)] ?? Buffer.alloc(0));
          ids.set(row, id);
          return { row, id };
        });
        for (const tenant of new Set(absent.map((row) => row.tenant))) {
          const of = items.filter(({ row }) => row.tenant === tenant);
          await store(client, this.#namespace, of, known, outcomes);
        }
        this.#stored.set(client, [...(this.#stored.get(client) ?? []), ...own]);
      });
      await Promise.all(gifts);
    } finally {
      for (const id of ids.values()) outboxDrop(id);
    }
    const failed = [...outcomes.failed.values()];
    const stored = [...outcomes.moved].filter((row) => !outcomes.failed.has(row)).length;
    return { stored, present: rows.length - stored - failed.length, failed };
  }

  #homesOf(name: RecordClass, rows: readonly Row[], outcomes: Outcomes): Map<VaultClient, Row[]> {
    const { clients, pools } = this.#options;
    const homes = new Map<VaultClient, Row[]>();
    for (const row of rows) {
      const anchor = name === "ssm" ? hashOf(row) : this.#anchors.of(row);
      const { owner = -1, second = -1 } =
        anchor === null ? {} : pools[name].homeOf(hashOf(row), anchor, row.number);
      const own = [owner, second].flatMap((at) => clients[name][at] ?? []);
      if (own.length === 0) outcomes.failed.set(row, "unreachable");
      for (const client of own) homes.set(client, [...(homes.get(client) ?? []), row]);
    }
    return homes;
  }

  /** Keeps the stored records under the bundle's session name. */
  async #keep(): Promise<void> {
    const { keepS } = this.#options;
    const { tenant, namespace: name } = this.#config;
    const session = this.#config.session ?? `bundle-${name.slice(0, 8)}`;
    if (keepS === 0) return;
    for (const [client, rows] of this.#stored) {
      for (let at = 0; at < rows.length; at += KEYS_MAX) {
        const part = rows.slice(at, at + KEYS_MAX);
        const of = { session, namespace: this.#namespace, tenant, superseded: [], keepS };
        await client.keep({ ...of, keys: keysOf(part), release: false }, STORE_TIMEOUT_MS);
      }
    }
  }

  async #held(): Promise<number> {
    const here = new Set<number>();
    const absent = new Set<number>();
    for (const [client, rows] of this.#stored) {
      if (client.name !== "kv") continue;
      const keys = keysOf(rows);
      const found = await client.lookup(this.#namespace, keys, STORE_TIMEOUT_MS, UNCOUNTED);
      for (const [at, { number }] of rows.entries())
        (hasBit(found, at) ? here : absent).add(number);
    }
    let blocks = 0;
    while (here.has(blocks) && !absent.has(blocks)) blocks += 1;
    return blocks;
  }
}
