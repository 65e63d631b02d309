// Owns the export of a bundle: copies records from vaults unchanged, layer by layer, into a directory, then signs the manifest.
import type { RecordClass } from "../../base/block.ts";
import { TierkvError } from "../../base/errors.ts";
import { BUNDLE_LAYERS_MAX } from "../../base/limits/tools.ts";
import { outboxView } from "../../base/native.ts";
import type { SigningKey } from "../../base/signing-key.ts";
import { randomToken } from "../../base/time.ts";
import { collected } from "../../moving/copies.ts";
import { packRows } from "../../moving/rows.ts";
import { codecNameOf } from "../../sidecar/save/codecs.ts";
import { LayerSeal, packLayer } from "./layer.ts";
import { Layout } from "./layout.ts";
import { makeManifest } from "./manifest.ts";
import type { BundleConfig, Seal } from "./manifest.ts";
import { byHolder, layersOf } from "./selection.ts";
import type { Found, Selection } from "./selection.ts";

export interface ExportOptions {
  path: string;
  selection: Selection;
  key: SigningKey;
  /** Seals the layers; null: they are not sealed here. */
  secret: Buffer | null;
  /** Whether records without a seal may leave as they are. */
  isUnsealed: boolean;
  onProgress(done: number, all: number): void;
}

export interface Exported {
  digest: string;
  config: BundleConfig;
}

const SALT_BYTES = 32;
/** Offsets in a record's header, and of a seal's magic; docs/protocol.md section 1. */
const [CODEC_AT, END_TOKENS_AT, PAYLOAD_AT] = [8, 40, 192];
const SEALED_MAGIC = "TKVS";

/** Throws USAGE when a record would leave unsealed. Any failure removes the directory. */
export async function exportBundle(options: ExportOptions): Promise<Exported> {
  const layout = Layout.create(options.path);
  try {
    return await new Exporter(layout, options).run();
  } catch (error) {
    layout.remove();
    throw error;
  }
}

class Exporter {
  readonly #layout: Layout;
  readonly #options: ExportOptions;
  readonly #salt: Buffer = randomToken(SALT_BYTES);
  readonly #seal: LayerSeal | null;
  readonly #layers: BundleConfig["layers"] = [];
  readonly #codecs: Set<string> = new Set();
  #bytes = 0;
  #tokens = 0;
  #sealed = 0;

  constructor(layout: Layout, options: ExportOptions) {
    this.#layout = layout;
    this.#options = options;
    this.#seal = options.secret === null ? null : new LayerSeal(options.secret, this.#salt);
  }

  async run(): Promise<Exported> {
    const { selection, key, onProgress } = this.#options;
    const { namespace, model, session, tenant, blocks } = selection;
    const { kv, ssm } = selection.rows;
    const records = kv.length + ssm.length;
    let done = 0;
    // Attention blocks go before the states behind them.
    for (const [name, rows] of Object.entries({ kv, ssm }) as [RecordClass, Found[]][]) {
      for (const layer of layersOf(rows)) {
        await this.#add(name, layer);
        done += layer.length;
        onProgress(done, records);
      }
    }
    const config: BundleConfig = {
      version: 1,
      namespace: namespace.toString("hex"),
      model,
      session,
      tenant,
      blocks,
      tokens: this.#sealed > 0 ? null : this.#tokens,
      codecs: [...this.#codecs],
      records,
      bytes: this.#bytes,
      seal: this.#sealOf(records),
      salt: this.#seal === null ? "" : this.#salt.toString("hex"),
      layers: this.#layers,
    };
    const made = makeManifest(config, key);
    this.#layout.write(made.config);
    return { digest: this.#layout.finish(made.manifest), config };
  }

  #sealOf(records: number): Seal {
    if (this.#seal !== null) return "bundle";
    return this.#sealed === records ? "records" : "none";
  }

  async #add(name: RecordClass, rows: readonly Found[]): Promise<void> {
    if (this.#layers.length >= BUNDLE_LAYERS_MAX) {
      const reason = `a bundle has at most ${BUNDLE_LAYERS_MAX} layers of 16 MiB: choose a shorter prefix`;
      throw new TierkvError("USAGE", { reason });
    }
    const records = await this.#recordsOf(rows);
    for (const record of records) this.#look(record, name);
    // The fetched lengths may differ from the listed ones.
    const listed = rows.map((row, at) => ({ ...row, bytes: records[at]?.length ?? 0 }));
    const clear = packLayer(packRows(listed), records);
    const bytes = this.#seal?.close(clear, this.#layers.length) ?? clear;
    const digest = this.#layout.write(bytes);
    this.#layers.push({ digest, size: bytes.length, class: name });
  }

  #look(record: Buffer, name: RecordClass): void {
    const { isUnsealed } = this.#options;
    this.#bytes += record.length;
    const tokens = Number(record.readBigUInt64LE(END_TOKENS_AT));
    const magic = record.toString("latin1", PAYLOAD_AT, PAYLOAD_AT + SEALED_MAGIC.length);
    if (tokens === 0 && magic === SEALED_MAGIC) {
      this.#sealed += 1;
      return;
    }
    if (this.#seal === null && !isUnsealed) {
      const reason =
        "these records are not sealed, and whoever has them can tell what the prompt was; close the bundle with --seal FILE, or say --unsealed";
      throw new TierkvError("USAGE", { reason });
    }
    if (name === "kv") this.#tokens = Math.max(this.#tokens, tokens);
    this.#codecs.add(codecNameOf(record[CODEC_AT] ?? 0) ?? "unknown");
  }

  /** Fetches each record from the first holder that still has it. */
  async #recordsOf(rows: readonly Found[]): Promise<Buffer[]> {
    const { namespace } = this.#options.selection;
    const got = new Map<Found, Buffer>();
    for (let place = 0; got.size < rows.length; place += 1) {
      const held = byHolder(
        rows.filter((row) => !got.has(row)),
        place,
      );
      for (const [client, of] of held) {
        await collected(client, namespace, of, (records) => {
          for (const [at, id] of records) {
            const row = of[at];
            if (row !== undefined) got.set(row, outboxView(id));
          }
        });
      }
      if (held.size > 0) continue;
      const gone = rows.find((row) => !got.has(row));
      const reason = `block ${gone?.number ?? 0} was evicted meanwhile; keep the session (\`tierkv session keep\`), and begin again`;
      throw new TierkvError("BUNDLE_REFUSED", { where: this.#layout.path, reason });
    }
    return rows.flatMap((row) => got.get(row) ?? []);
  }
}
