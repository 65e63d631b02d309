// Owns reading one batch of vLLM's KV-cache events: positional arrays and maps, with fields that releases add or leave out.
import { decode } from "@msgpack/msgpack";

/** One block that an engine holds now. */
export interface StoredBlock {
  /** The engine's name for it: the low 64 bits of its hash. */
  hash: bigint;
  tokens: readonly number[];
  /** What else went into the hash: adapter, pictures, salt. */
  extra: readonly string[];
}

/** Where blocks lie: in the engine's own memory, or in vaults that it may pull them from. */
export type Tier = "gpu" | "vault";

export type KvEvent =
  | {
      kind: "stored";
      tier: Tier;
      parent: bigint | null;
      blockSize: number;
      blocks: StoredBlock[];
      group: number;
    }
  | { kind: "removed"; tier: Tier; hashes: bigint[]; group: number }
  | { kind: "cleared" };

/** By vLLM's word; what lies elsewhere, such as in an engine's own offload, is not told by when it is gone. */
const TIERS: ReadonlyMap<unknown, Tier> = new Map([
  ["GPU", "gpu"],
  ["STORAGE", "vault"],
]);

/** Fields in the order of the positional form, behind the tag. */
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

/** Groups whose blocks say that the whole prefix is held; a window holds its end only. */
const WHOLE: ReadonlySet<unknown> = new Set([
  undefined,
  null,
  "full_attention",
  "mla_attention",
  "sink_full_attention",
]);

/** Events of GPU and vaults in the order they happened; throws for what is no batch. Unknown events and other media are left out. */
export function readBatch(payload: Uint8Array): KvEvent[] {
  const batch = decode(payload, { useBigInt64: true });
  if (!Array.isArray(batch) || !Array.isArray(batch[1])) throw new Error("no batch of events");
  return batch[1].flatMap((event: unknown) => readEvent(event));
}

function readEvent(event: unknown): KvEvent[] {
  const fields = fieldsOf(event);
  if (fields === null) return [];
  const { type } = fields;
  if (type === "AllBlocksCleared") return [{ kind: "cleared" }];
  const tier = TIERS.get(fields["medium"] ?? "GPU");
  if (tier === undefined) return [];
  const hashes = listOf(fields["block_hashes"]).map(hashOf);
  const group = typeof fields["group_idx"] === "number" ? fields["group_idx"] : 0;
  if (type === "BlockRemoved") return [{ kind: "removed", tier, hashes, group }];
  if (type !== "BlockStored" || !WHOLE.has(fields["kv_cache_spec_kind"])) return [];
  return [storedOf(fields, tier, hashes, group)];
}

function fieldsOf(event: unknown): Record<string, unknown> | null {
  if (Array.isArray(event)) {
    const [type, ...values] = event as unknown[];
    const names = typeof type === "string" ? FIELDS[type] : undefined;
    if (names === undefined) return null;
    return { type, ...Object.fromEntries(names.map((name, at) => [name, values[at]])) };
  }
  return typeof event === "object" && event !== null ? { ...event } : null;
}

function storedOf(
  fields: Record<string, unknown>,
  tier: Tier,
  hashes: bigint[],
  group: number,
): KvEvent {
  const blockSize = Number(fields["block_size"]);
  const tokens = listOf(fields["token_ids"]).map(Number);
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
  return { kind: "stored", tier, parent: above, blockSize, blocks, group };
}

/** Strings and numbers of a nested list, in order. */
function textsOf(value: unknown): string[] {
  if (value === null || value === undefined) return [];
  if (Array.isArray(value)) return value.flatMap((item: unknown) => textsOf(item));
  if (value instanceof Uint8Array) return [Buffer.from(value).toString("hex")];
  return [typeof value === "string" ? value : JSON.stringify(value, spelled)];
}

const spelled = (_key: string, value: unknown): unknown =>
  typeof value === "bigint" ? value.toString() : value;

function listOf(value: unknown): unknown[] {
  if (!Array.isArray(value)) throw new Error("a list is missing");
  return value;
}

/** Integers are the low 64 bits already; of bytes they are the last eight. */
function hashOf(value: unknown): bigint {
  if (typeof value === "bigint") return BigInt.asUintN(64, value);
  if (typeof value === "number") return BigInt(value);
  if (value instanceof Uint8Array && value.length >= 8) {
    return Buffer.from(value).readBigUInt64BE(value.length - 8);
  }
  throw new Error("a hash is neither a number nor bytes");
}
