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
  ],
  BlockRemoved: ["block_hashes", "medium", "group_idx"],
  AllBlocksCleared: [],
};

const READ: ReadonlySet<string> = new Set(["type", ...(FIELDS["BlockStored"] ?? [])]);

/** Kinds of groups whose blocks imply the whole prefix; a window holds only its end. */
const WHOLE: ReadonlySet<unknown> = new Set([
  undefined,
  null,
  "full_attention",
  "mla_attention",
  "sink_full_attention",
]);

/** Returns the events of GPU and vaults in order, without unknown events and other media. Throws for a payload that is no batch. */
export function readBatch(payload: Uint8Array): KvEvent[] {
  const reader = new Reader(payload);
  const parts = reader.array() ?? 0;
  if (parts < 2) throw new Error("no batch of events");
  reader.skip();
  const count = reader.array();
  if (count === null) throw new Error("no batch of events");
  const events: KvEvent[] = [];
  for (let n = 0; n < count; n += 1) {
    const event = readEvent(fieldsOf(reader));
    if (event !== null) events.push(event);
  }
  return events;
}

function readEvent(fields: Readonly<Record<string, unknown>>): KvEvent | null {
  const { type } = fields;
  if (type === "AllBlocksCleared") return { kind: "cleared" };
  const tier = TIERS.get(fields["medium"] ?? "GPU");
  if (tier === undefined || (type !== "BlockRemoved" && type !== "BlockStored")) return null;
  const hashes = fields["block_hashes"] as bigint[] | undefined;
  if (hashes === undefined) throw new Error("a list of hashes is missing");
  const group = typeof fields["group_idx"] === "number" ? fields["group_idx"] : 0;
  if (type === "BlockRemoved") return { kind: "removed", tier, hashes, group };
  if (!WHOLE.has(fields["kv_cache_spec_kind"])) return null;
  const isNaming = tier === "vault" && hashes.length === 0;
  return isNaming ? namedOf(fields, group) : storedOf(fields, tier, hashes, group);
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
function fieldsOf(reader: Reader): Readonly<Record<string, unknown>> {
  const fields: Record<string, unknown> = Object.create(null) as Record<string, unknown>;
  const pairs = reader.map();
  if (pairs !== null) {
    for (let n = 0; n < pairs; n += 1) readField(reader, fields, reader.value());
    return fields;
  }
  const values = reader.array() ?? 0;
  if (values === 0) throw new Error("no event");
  fields["type"] = reader.value();
  const names = FIELDS[String(fields["type"])] ?? [];
  for (let n = 1; n < values; n += 1) readField(reader, fields, names[n - 1]);
  return fields;
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
