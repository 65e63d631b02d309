// Owns the figures of a full vault's evictions: hit ratio of its store on seeded traces, beside a plain LRU.
import { runExample } from "./lib/cargo.js";
import { describe } from "./lib/figures.js";

export const title = "Hit ratio and look-up time of the vault's store, beside a plain LRU";

const OURS = "tierKV";
/** The policy to match or exceed. */
const OTHER = "plain LRU";
const NO_WORSE = { on: "ratio", least: 1 };

export async function run() {
  const rows = await runExample("hit_ratio");
  const figures = rows
    .filter(({ policy }) => policy === OURS)
    .flatMap((row) => {
      const label = `${row.trace}, ${row.fits} of the keys fit`;
      const other = rows.find((at) => isSameTrace(at, row) && at.policy === OTHER);
      const hits = describe({
        name: `${label}: hit ratio`,
        unit: "",
        value: row.hitRatio,
        ratio: row.hitRatio / other.hitRatio,
        of: OTHER,
        floor: NO_WORSE,
      });
      const [min, value, max] = row.lookupNs;
      const lru = other.lookupNs[1];
      const time = { unit: "ns", value, min, max, ratio: value / lru, of: OTHER };
      return [hits, describe({ name: `${label}: look-up`, ...time })];
    });
  return { figures };
}

const isSameTrace = (a, b) => a.trace === b.trace && a.fits === b.fits;
