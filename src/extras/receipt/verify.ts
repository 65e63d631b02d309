// Owns the check of a receipt against vaults: fetches its sampled blocks as a sidecar does, and compares their digests.
import { Arena, SIDECAR_OWNER } from "../../arena/arena.ts";
import { classNumber, ItemStatus, packKeys, toNamespace } from "../../base/block.ts";
import type { RecordClass } from "../../base/block.ts";
import { ARENA_POLL_MS, CALL_TIMEOUT_MS } from "../../base/limits/general.ts";
import { geometryInfo, registerGeometry, slotsDigest } from "../../base/native.ts";
import type { Geometry, GeometryId } from "../../base/native.ts";
import { sleep } from "../../base/time.ts";
import type { Vault } from "../../client/vault.ts";
import type { ReceiptSample, ReceiptShape, ReceiptStatement } from "../../receipt/receipt.ts";

/** same: the record decodes to the signed digest · differs: it does not, or is damaged · gone: no vault holds it. */
export type Verdict = "same" | "differs" | "gone";

export interface Checked extends ReceiptSample {
  verdict: Verdict;
  /** Vault that returned it; null: none. */
  vault: string | null;
}

const SLOT_ALIGN_BYTES = 4096;
/** Bytes of an element, by its type's code in the record header. */
const ELEMENT_BYTES = [1, 2, 2, 4] as const;
const ATTENTION = 0;

/** Checks one block at a time, with one page per shape in memory. The caller has checked the signature. */
export async function checkSample(
  statement: ReceiptStatement,
  vaults: Readonly<Record<RecordClass, readonly Vault[]>>,
): Promise<Checked[]> {
  const checked: Checked[] = [];
  const pages = new Map(statement.shapes.map((shape) => [placeOf(shape), new Page(shape)]));
  try {
    for (const one of statement.sample) {
      const page = pages.get(placeOf(one));
      const found = page === undefined ? null : await page.fetch(statement, one, vaults);
      const verdict = found === null ? "gone" : found.digest === one.digest ? "same" : "differs";
      checked.push({ ...one, verdict, vault: found?.vault ?? null });
    }
    return checked;
  } finally {
    for (const page of pages.values()) page.close();
  }
}

const placeOf = ({ group, shard }: { group: number; shard: number }): string => `${group} ${shard}`;

/** Memory into which one record is decoded. */
class Page {
  readonly #shape: ReceiptShape;
  readonly #geometry: GeometryId;
  readonly #arena: Arena;

  constructor(shape: ReceiptShape) {
    this.#shape = shape;
    this.#geometry = registerGeometry(geometryOf(shape));
    const { slotBytes: bytes } = geometryInfo(this.#geometry);
    const slotBytes = Math.ceil(bytes / SLOT_ALIGN_BYTES) * SLOT_ALIGN_BYTES;
    this.#arena = new Arena({ slotBytes, slotCount: 1, dir: null });
  }

  /** Returns the digest from the first vault that holds the block, empty for a damaged record. null: none holds it. */
  async fetch(
    { namespace, fidelity }: ReceiptStatement,
    { hash, group, shard }: ReceiptSample,
    vaults: Readonly<Record<RecordClass, readonly Vault[]>>,
  ): Promise<{ digest: string; vault: string } | null> {
    while (this.#arena.status().touchedSlots < 1) await sleep(ARENA_POLL_MS);
    const leases = this.#arena.lease(SIDECAR_OWNER, 1);
    const keys = packKeys(Buffer.from(hash, "hex"), group, shard);
    const geometries = Uint32Array.of(this.#geometry);
    const plan = { arena: this.#arena.id, fidelity, keys, geometries, leases };
    const name = toNamespace(Buffer.from(namespace, "hex"));
    try {
      for (const vault of vaults[this.#shape.class]) {
        const { statuses } = await vault.fetch(name, plan, { deadlineMs: CALL_TIMEOUT_MS });
        const [status] = statuses;
        if (status === ItemStatus.BAD_RECORD) return { digest: "", vault: vault.address };
        if (status !== ItemStatus.ACCEPTED) continue;
        const triple = Uint32Array.of(this.#geometry, ...leases);
        const digest = Buffer.from(await slotsDigest(this.#arena.id, triple)).toString("hex");
        return { digest, vault: vault.address };
      }
      return null;
    } finally {
      this.#arena.releaseAll(leases);
    }
  }

  close(): void {
    this.#arena.close();
  }
}

/** Returns a dense geometry: K and V of a token side by side, then the tokens of a head in order. */
function geometryOf(shape: ReceiptShape): Geometry {
  const { group, layout, dtype, tokens, layers, layerBytes, heads, dimK, dimV } = shape;
  const recordClass = classNumber(shape.class);
  const page = { group, recordClass, layout, dtype, tokens, layers, layerBytes, heads, dimK, dimV };
  if (layout !== ATTENTION) {
    return { ...page, keyOffset: 0, valueOffset: 0, headStride: 0, tokenStride: 0 };
  }
  const bytes = ELEMENT_BYTES[dtype as 0] ?? 1;
  const tokenStride = (dimK + dimV) * bytes;
  return {
    ...page,
    keyOffset: 0,
    valueOffset: dimK * bytes,
    headStride: tokens * tokenStride,
    tokenStride,
  };
}
