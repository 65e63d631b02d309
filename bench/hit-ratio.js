// Owns the figures of what a full vault keeps: hit ratio of its store on seeded traces, beside a plain LRU of the same size.
import { runExample } from "./lib/cargo.js";
import { describe } from "./lib/figures.js";

export const title = "Hit ratio and look-up time of the vault's store, beside a plain LRU";

export async function run() {
  const rows = await runExample("hit_ratio");
  const ours = rows.filter(({ policy }) => policy === OURS);
  const figures = ours.flatMap((row) => {
    const lru = rows.find((other) => isSameTrace(other, row) && other.policy !== OURS);
    const label = `${row.trace}, ${row.fits} of the keys fit`;
    const [min, value, max] = row.lookupNs;
    return [
      describe({
        name: `${label}: hit ratio`,
        unit: "",
        value: row.hitRatio,
        ratio: row.hitRatio / lru.hitRatio,
        of: lru.policy,
        floor: NO_WORSE,
      }),
      describe({
        name: `${label}: look-up`,
        unit: "ns",
        value,
        min,
        max,
        ratio: value / lru.lookupNs[1],
        of: lru.policy,
      }),
    ];
  });
  return { figures };
}

const OURS = "tierKV";
const NO_WORSE = { on: "ratio", least: 1 };

const isSameTrace = (a, b) => a.trace === b.trace && a.fits === b.fits;
