// Owns a vault's answer to a look-up over lanes, as offers: of the vault itself, and of its archive.
import type { Archive } from "../archive/archive.ts";
import { NO_COST } from "../source.ts";
import type { BlockSource, Cost, Offer } from "../source.ts";

/** Reads one answer, whose length the native side has checked: a bitmap, or two and the archive's pace. */
export function offersOf(
  data: Buffer,
  keys: number,
  vault: BlockSource,
  archive: Archive,
): readonly Offer[] {
  const bytes = Math.ceil(keys / 8);
  if (data.length === bytes) return [{ source: vault, keys: data, cost: NO_COST }];
  const [firstUs, nextUs] = [data.readUInt32LE(2 * bytes), data.readUInt32LE(2 * bytes + 4)];
  const cost: Cost | null =
    firstUs === 0 ? null : { firstMs: firstUs / 1000, nextMs: nextUs / 1000 };
  archive.cost = cost;
  const far = data.subarray(bytes, 2 * bytes);
  // The first bitmap has the archive's keys, too.
  const near = Buffer.from(data.subarray(0, bytes).map((bits, at) => bits & ~(far[at] ?? 0)));
  return [
    { source: vault, keys: near, cost: NO_COST },
    { source: archive, keys: far, cost },
  ];
}

/** Joins the answers to parts of a look-up; each part but the last fills whole bytes. */
export function joinOffers(parts: readonly (readonly Offer[])[]): readonly Offer[] {
  const sizes = parts.map(([first]) => first?.keys.length ?? 0);
  const sources = new Map(
    parts.flat().map(({ source, cost }): [BlockSource, Cost | null] => [source, cost]),
  );
  return [...sources].map(([source, cost]) => {
    const keysIn = (offers: readonly Offer[], part: number): Buffer =>
      offers.find((offer) => offer.source === source)?.keys ?? Buffer.alloc(sizes[part] ?? 0);
    return { source, keys: Buffer.concat(parts.map(keysIn)), cost };
  });
}

/** Returns a bitmap of the keys that any source offers. */
export function offered(offers: readonly Offer[], keys: number): Buffer {
  const [only, ...more] = offers;
  if (only === undefined) return Buffer.alloc(Math.ceil(keys / 8));
  if (more.length === 0) return only.keys;
  return Buffer.from(
    only.keys.map((bits, at) => more.reduce((all, offer) => all | (offer.keys[at] ?? 0), bits)),
  );
}
