// Owns decoding one batch of vLLM's KV-cache events: positional arrays or maps, with fields that vary between releases.
import { HASH_BYTES, NAMESPACE_BYTES } from "../../block.ts";
import { GATEWAY_SHARDS_MAX } from "../../limits/gateway.ts";
import { hashOf, Reader } from "./reader.ts";

/** One block that an engine holds now. */
export interface StoredBlock {
  /** Low 64 bits of the engine's hash of the block. */
  hash: bigint;
  tokens: readonly number[];
  /** Other inputs of the hash: adapter, pictures, salt. */
  extra: readonly string[];
}

/** Where blocks are: in the engine's own memory, or in vaults from which it can pull them. */
export type Tier = "gpu" | "vault";

/** How vaults identify an engine's blocks: namespace, shards per block, and the root of its hashes. */
export interface VaultName {
  namespace: Buffer;
  shards: number;
  root: Buffer;
}

export type KvEvent =
  | {
      kind: "stored";
      tier: Tier;
      parent: bigint | null;
      blockSize: number;
      blocks: StoredBlock[];
      group: number;
      /** Adapter of all these blocks; null: the model itself. */
      adapter: string | null;
    }
  | { kind: "removed"; tier: Tier; hashes: bigint[]; group: number }
  | { kind: "cleared" }
  /** null: the engine cannot reach vaults any more. */
  | { kind: "named"; name: VaultName | null; group: number; blockSize: number };

/** Tiers by vLLM's word. Other media, such as an engine's own offload, are left out because their removals are not reported. */
const TIERS: ReadonlyMap<unknown, Tier> = new Map([
  ["GPU", "gpu"],
  ["STORAGE", "vault"],
]);

/** Owner of blocks in vaults. */
const OURS = "tierkv";

/** Field names in the order of the positional form, after the tag. */
const FIELDS: Readonly<Record<string, readonly string[]>> = {
  BlockStored: [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
    "ownership",
  ],
  BlockRemoved: ["block_hashes", "medium", "group_idx", "locality", "ownership"],
  AllBlocksCleared: [],
};

const UNREAD: ReadonlySet<string> = new Set(["kv_cache_spec_sliding_window", "locality"]);
const READ: ReadonlySet<string> = new Set(
  ["type", ...(FIELDS["BlockStored"] ?? [])].filter((name) => !UNREAD.has(name)),
);

/** Kinds of groups whose blocks imply the whole prefix; a window holds only its end. */
const WHOLE: ReadonlySet<unknown> = new Set([
  undefined,
  null,
  "full_attention",
  "mla_attention",
  "sink_full_attention",
]);

/** A batch's events of GPU and vaults in order, and why an event was left out; null: none was. */
export interface ReadBatch {
  events: KvEvent[];
  skipped: string | null;
}

/**
 * Reads a batch. Unknown events, other media and other programs' storage tiers are left out, and so is an event of stored blocks
 * that cannot be read: its blocks then count as not held. Throws for a payload that is no batch, and for an unreadable removal.
 */
export function readBatch(payload: Uint8Array): ReadBatch {
  const reader = new Reader(payload);
  const parts = reader.array() ?? 0;
  if (parts < 2) throw new Error("no batch of events");
  reader.skip();
  const count = reader.array();
  if (count === null) throw new Error("no batch of events");
  const events: KvEvent[] = [];
  let skipped: string | null = null;
  for (let n = 0; n < count; n += 1) {
    const from = reader.at;
    const fields: Record<string, unknown> = Object.create(null) as Record<string, unknown>;
    try {
      readFields(reader, fields);
      const event = readEvent(fields);
      if (event !== null) events.push(event);
    } catch (error) {
      if (fields["type"] !== "BlockStored" || !(error instanceof Error)) throw error;
      reader.at = from;
      reader.skip();
      skipped = error.message;
    }
  }
  return { events, skipped };
}

function readEvent(fields: Readonly<Record<string, unknown>>): KvEvent | null {
  const { type } = fields;
  if (type === "AllBlocksCleared") return { kind: "cleared" };
  const tier = tierOf(fields);
  if (tier === null || (type !== "BlockRemoved" && type !== "BlockStored")) return null;
  const hashes = fields["block_hashes"] as bigint[] | undefined;
  if (hashes === undefined) throw new Error("a list of hashes is missing");
  const group = typeof fields["group_idx"] === "number" ? fields["group_idx"] : 0;
  if (type === "BlockRemoved") return { kind: "removed", tier, hashes, group };
  if (!WHOLE.has(fields["kv_cache_spec_kind"])) return null;
  const isNaming = tier === "vault" && hashes.length === 0;
  return isNaming ? namedOf(fields, group) : storedOf(fields, tier, hashes, group);
}

/** null: a medium that is left out, or another program's storage tier. Releases before 0.30 name no owner. */
function tierOf({ medium, ownership }: Readonly<Record<string, unknown>>): Tier | null {
  const tier = TIERS.get(medium ?? "GPU") ?? null;
  return tier === "vault" && (ownership ?? OURS) !== OURS ? null : tier;
}

/** Reads tierKV's own event, which has no blocks and carries the name in `extra_keys`; null: another program's event. */
function namedOf(fields: Readonly<Record<string, unknown>>, group: number): KvEvent | null {
  const [mark, ...name] = textsOf(fields["extra_keys"]);
  const blockSize = Number(fields["block_size"]);
  if (mark !== "tierkv" || !(blockSize > 0)) return null;
  return { kind: "named", name: nameIn(name), group, blockSize };
}

/** null: the event holds no name, or one from another release. */
function nameIn([namespace = "", shards, root = ""]: readonly string[]): VaultName | null {
  const name = {
    namespace: Buffer.from(namespace, "hex"),
    shards: Number(shards),
    root: Buffer.from(root, "hex"),
  };
  const isWhole = name.namespace.length === NAMESPACE_BYTES && name.root.length === HASH_BYTES;
  const hasShards =
    Number.isInteger(name.shards) && name.shards >= 1 && name.shards <= GATEWAY_SHARDS_MAX;
  return isWhole && hasShards ? name : null;
}

/** Reads one event in either form; positional fields of an unknown event are skipped. */
function readFields(reader: Reader, fields: Record<string, unknown>): void {
  const pairs = reader.map();
  if (pairs !== null) {
    for (let n = 0; n < pairs; n += 1) readField(reader, fields, reader.value());
    return;
  }
  const values = reader.array() ?? 0;
  if (values === 0) throw new Error("no event");
  fields["type"] = reader.value();
  const names = FIELDS[String(fields["type"])] ?? [];
  for (let n = 1; n < values; n += 1) readField(reader, fields, names[n - 1]);
}

/** Skips fields that no reader needs. */
function readField(reader: Reader, fields: Record<string, unknown>, name: unknown): void {
  if (name === "block_hashes") fields[name] = reader.hashes();
  else if (name === "token_ids") fields[name] = reader.numbers();
  else if (typeof name === "string" && READ.has(name)) fields[name] = reader.value();
  else reader.skip();
}

function storedOf(
  fields: Readonly<Record<string, unknown>>,
  tier: Tier,
  hashes: bigint[],
  group: number,
): KvEvent {
  const blockSize = Number(fields["block_size"]);
  const tokens = (fields["token_ids"] ?? []) as number[];
  if (!(blockSize > 0) || tokens.length !== blockSize * hashes.length) {
    throw new Error(`${tokens.length} tokens in ${hashes.length} blocks of ${blockSize}`);
  }
  const parent = fields["parent_block_hash"];
  const lora = fields["lora_name"];
  const extras = Array.isArray(fields["extra_keys"]) ? (fields["extra_keys"] as unknown[]) : [];
  const blocks = hashes.map((hash, at) => {
    const known = textsOf(extras[at]);
    const isNamed = typeof lora !== "string" || known.includes(lora);
    return {
      hash,
      tokens: tokens.slice(at * blockSize, (at + 1) * blockSize),
      extra: isNamed ? known : [lora, ...known],
    };
  });
  const above = parent === null || parent === undefined ? null : hashOf(parent);
  const adapter = typeof lora === "string" ? lora : null;
  return { kind: "stored", tier, parent: above, blockSize, blocks, group, adapter };
}

/** Returns the values of a nested list as texts, in order. */
function textsOf(value: unknown): string[] {
  if (value === null || value === undefined) return [];
  if (Array.isArray(value)) return value.flatMap((item: unknown) => textsOf(item));
  if (value instanceof Uint8Array) return [Buffer.from(value).toString("hex")];
  return [typeof value === "string" ? value : JSON.stringify(value, spelled)];
}

const spelled = (_key: string, value: unknown): unknown =>
  typeof value === "bigint" ? value.toString() : value;
