// Owns the figures of simulated pools: misses by cause over many seeds, and what a pool of up to 1,000 vaults costs on paper.
import { RUN_BLOCKS } from "../dist/limits-pool.js";
import { NO_VAULT } from "../dist/pool/placement.js";
import { Ring } from "../dist/pool/ring.js";
import { Pool } from "../dist/sidecar/vaults/pools.js";
import { describe, quantile } from "./lib/figures.js";
import { lookupOf, movesOf } from "./sim/scale.js";
import { runSeed } from "./sim/world.js";

export const title =
  "Simulated pools of vaults: what is missed and why, what moves, what growth costs";

const SEEDS = 10_000;
const QUICK_SEEDS = 500;
const POOLS = 40;
const SIZES = [4, 8, 16, 100, 1000];
const ENGINES = 200;
/** A list of members is asked for every ten seconds. */
const LIST_EVERY_S = 10;

export function run({ isQuick: quick }) {
  return Promise.resolve({
    figures: [
      ...worlds(quick ? QUICK_SEEDS : SEEDS),
      ...SIZES.flatMap((size) => scale(size, quick)),
    ],
  });
}

function worlds(seeds) {
  const all = Array.from({ length: seeds }, (_none, seed) =>
    runSeed(seed, { Pool, NO_VAULT, RUN_BLOCKS }),
  );
  const sum = (of, from = all) => from.reduce((total, one) => total + of(one), 0);
  const share = (of, from = all) => sum(of, from) / sum(({ runs }) => runs, from);
  const [single, double] = [false, true].map((is) => all.filter(({ isDouble }) => isDouble === is));
  const line = (name, value, more = {}) =>
    describe({ name: `${seeds} seeds: ${name}`, unit: "", value, ...more });
  return [
    line(
      "share of asked runs that a lost vault alone held, one copy",
      share(({ lost }) => lost, single),
    ),
    line(
      "the same, two copies",
      share(({ lost }) => lost, double),
      { floor: { on: "value", most: 0 } },
    ),
    line(
      "held by a vault that was not asked, because hosts saw the pool differently",
      share(({ elsewhere }) => elsewhere),
    ),
    line(
      "vaults asked for a run, one copy",
      share(({ asked }) => asked, single),
    ),
    line(
      "the same, two copies",
      share(({ asked }) => asked, double),
    ),
  ];
}

function scale(size, quick) {
  const pools = size > 100 ? 1 : quick ? 4 : POOLS;
  const seeds = Array.from({ length: pools }, (_none, seed) => seed);
  const moves = seeds.map((seed) => movesOf(seed, size, { Ring }));
  const { asked, us, positions } = lookupOf(1, size, { Ring });
  const bound = 1 / size + 0.02;
  const within = moves
    .flatMap(({ join, leave }) => [join, leave])
    .filter((moved) => moved <= bound);
  const line = (name, unit, value, more = {}) =>
    describe({ name: `${size} vaults: ${name}`, unit, value, ...more });
  const join = moves.map((one) => one.join);
  return [
    line(
      "moved when one comes, above 1/N, median pool",
      "points",
      (quantile(join, 0.5) - 1 / (size + 1)) * 100,
    ),
    line(
      "pools in which one that comes or goes moves 1/N + 2 points at most",
      "",
      within.length / (2 * pools),
    ),
    line("moved between vaults that stay", "", Math.max(...moves.map(({ astray }) => astray)), {
      floor: { on: "value", most: 0 },
    }),
    line(
      "largest share over the mean, median pool",
      "",
      quantile(
        moves.map(({ mostOverMean }) => mostOverMean),
        0.5,
      ),
    ),
    line("vaults asked for a prompt of 16,384 tokens", "", asked),
    line("placing it", "us", us),
    line("positions that a host keeps", "", positions),
    line(`questions for members a second, ${ENGINES} hosts`, "", ENGINES / LIST_EVERY_S),
    line(`connections for questions and flushes, ${ENGINES} hosts`, "", ENGINES * size),
  ];
}
