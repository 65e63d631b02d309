// Owns a rank's KV-cache groups: their specs checked, registered as native geometries, and dropped again.
import { classNumber } from "../../base/block.ts";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { dropGeometry, geometryInfo, registerGeometry } from "../../base/native.ts";
import type { Geometry, GeometryId } from "../../base/native.ts";
import type { ReceiptShape } from "../../receipt/receipt.ts";
import type { GroupSpec } from "../socket/messages.ts";

export interface Group {
  readonly spec: GroupSpec;
  readonly geometry: GeometryId;
  /** Bytes that one block takes in a slot. */
  readonly slotBytes: number;
  /** Decoded bytes of one block. */
  readonly sourceBytes: number;
  /** Bytes of the block's largest record, header included. */
  readonly recordBytesMax: number;
}

export type Groups = ReadonlyMap<number, Group>;

export interface GroupRules {
  engine: string;
  /** `[turbo_quant] kv_dim` where it is set and used; every attention group must match it. */
  kvDim: number | null;
}

/** Codes of the record header, docs/protocol.md section 1. */
const LAYOUT = { attention: 0, opaque: 1 } as const;
const DTYPE = { u8: 0, bf16: 1, f16: 2, f32: 3 } as const;

/** Throws ENGINE_REFUSED naming the group and the fault; no geometry stays registered then. */
export function registerGroups(specs: readonly GroupSpec[], rules: GroupRules): Groups {
  const groups = new Map<number, Group>();
  try {
    for (const spec of specs) {
      if (groups.has(spec.group)) throw refused(rules.engine, spec, "registered twice");
      checkDim(spec, rules);
      groups.set(spec.group, registerGroup(spec, rules.engine));
    }
    return groups;
  } catch (error) {
    dropGroups(groups);
    throw error;
  }
}

export function dropGroups(groups: Groups): void {
  for (const { geometry } of groups.values()) dropGeometry(geometry);
}

/** Returns why two ranks cannot share an engine, or null. A block has one shard on each rank, so groups must match. */
export function groupsDiffer(a: Groups, b: Groups): string | null {
  if (a.size !== b.size) return `${a.size} groups on one rank, ${b.size} on another`;
  for (const [id, { spec }] of a) {
    const other = b.get(id)?.spec;
    if (other === undefined) return `group ${id} is on one rank only`;
    if (other.class !== spec.class || other.tokens !== spec.tokens || other.tail !== spec.tail) {
      return `group ${id} is ${sketch(spec)} on one rank, ${sketch(other)} on another`;
    }
  }
  return null;
}

function sketch({ class: recordClass, tokens, tail }: GroupSpec): string {
  return `${tokens} tokens (${recordClass}, tail ${tail})`;
}

function checkDim(spec: GroupSpec, { engine, kvDim }: GroupRules): void {
  if (kvDim === null || spec.class !== "kv" || spec.layout !== "attention") return;
  if (spec.dimK === kvDim) return;
  throw new TierkvError("ENGINE_REFUSED", {
    engine,
    reason: `[turbo_quant] kv_dim = ${kvDim}, but group ${spec.group} has head dim ${spec.dimK}`,
    fix: `set kv_dim = ${spec.dimK}, or leave it out: it is taken from the engine`,
  });
}

function registerGroup(spec: GroupSpec, engine: string): Group {
  try {
    const geometry = registerGeometry(toGeometry(spec));
    return { spec, geometry, ...geometryInfo(geometry) };
  } catch (error) {
    throw refused(engine, spec, toTierkvError(error).message);
  }
}

function toGeometry(spec: GroupSpec): Geometry {
  const { group, tokens, layers, layerBytes } = spec;
  const common = { group, tokens, layers, layerBytes };
  const recordClass = classNumber(spec.class);
  const layout = LAYOUT[spec.layout];
  if (spec.layout === "opaque") {
    return { ...common, recordClass, layout, dtype: DTYPE.u8, ...NO_VECTORS };
  }
  const { heads, dimK, dimV, keyOffset, valueOffset, headStride, tokenStride } = spec;
  const vectors = { heads, dimK, dimV, keyOffset, valueOffset, headStride, tokenStride };
  return { ...common, recordClass, layout, dtype: DTYPE[spec.dtype], ...vectors };
}

/** Shape that a record decodes to, independent of the engine's page layout. */
export function shapeOf({ spec, sourceBytes }: Group): Omit<ReceiptShape, "shard"> {
  const { group, tokens, layers } = spec;
  const { layout, dtype, heads, dimK, dimV } = toGeometry(spec);
  const layerBytes = sourceBytes / layers;
  return {
    group,
    class: spec.class,
    layout,
    dtype,
    tokens,
    layers,
    layerBytes,
    heads,
    dimK,
    dimV,
  };
}

const NO_VECTORS = {
  heads: 0,
  dimK: 0,
  dimV: 0,
  keyOffset: 0,
  valueOffset: 0,
  headStride: 0,
  tokenStride: 0,
} as const;

function refused(engine: string, { group }: GroupSpec, reason: string): TierkvError {
  return new TierkvError("ENGINE_REFUSED", {
    engine,
    reason: `group ${group}: ${reason}`,
    fix: "the engine runs on without tierKV; report its model and version",
  });
}
