// Owns the hit ratio of a pool of vaults beside one vault with the memory of all, because each vault evicts by itself.
import { runExample } from "./lib/cargo.js";
import { describe } from "./lib/figures.js";

export const title = "Hit ratio of a pool of vaults, beside one vault with the memory of all";

/** Consecutive blocks per vault from which on the floor applies. */
const RUN_LEAST = 2;
const FLOOR = { on: "ratio", least: 0.97 };

export async function run() {
  const rows = await runExample("pool_hit_ratio");
  const yielding = rows
    .filter(({ away }) => away !== undefined)
    .map(({ away, fits, lostPoints }) =>
      describe({
        name: `hits lost with one of 4 vaults away ${away}, ${fits} of the blocks fit`,
        unit: "points",
        value: lostPoints,
      }),
    );
  const pooled = rows
    .filter(({ vaults }) => vaults > 1)
    .map(({ scans, fits, vaults, run: inRow, hitRatio, besideOne }) =>
      describe({
        name: `${vaults} vaults, ${inRow} consecutive blocks on one, ${fits} of the blocks fit, one-time prompts: ${scans}`,
        unit: "",
        value: hitRatio,
        ratio: besideOne,
        of: "one vault",
        ...(inRow >= RUN_LEAST ? { floor: FLOOR } : {}),
      }),
    );
  return { figures: [...yielding, ...pooled] };
}
