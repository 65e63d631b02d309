// Owns the figures of simulated pools: misses by cause over many seeds, and the cost of a pool of up to 1,000 vaults.
import { LAYOUTS, PART_BLOCKS, RUN_BLOCKS } from "../dist/base/limits/pool.js";
import { EngineRates } from "../dist/cost/engine-rates.js";
import { Link } from "../dist/cost/link.js";
import { NO_VAULT, Placement } from "../dist/pool/placement.js";
import { Pool } from "../dist/sidecar/vaults/pools.js";
import { describe, quantile } from "./lib/figures.js";
import { lookupOf, movesOf, onPaper, PROMPT_BLOCKS } from "./sim/scale.js";
import { runSeed } from "./sim/world.js";

export const title =
  "Simulated pools of vaults: what is missed and why, what moves, what growth costs";

const SEEDS = 10_000;
const QUICK_SEEDS = 500;
const POOLS = 40;
const SIZES = [4, 8, 16, 32, 63];
/** Size above a pool's limit, extrapolated from the growth below. */
const PAPER = 1000;
const ENGINES = 200;
/** Seconds between a host's requests for the list of members. */
const LIST_EVERY_S = 10;
const PARTS = { Placement, LAYOUTS, RUN_BLOCKS, PART_BLOCKS };

export function run({ isQuick: quick }) {
  return Promise.resolve({
    figures: [
      ...worlds(quick ? QUICK_SEEDS : SEEDS),
      ...SIZES.flatMap((size) => [...moves(size, quick, "parts"), ...moves(size, quick, "whole")]),
      ...costs(),
    ],
  });
}

function worlds(seeds) {
  const all = Array.from({ length: seeds }, (_none, seed) =>
    runSeed(seed, { Pool, NO_VAULT, RUN_BLOCKS, EngineRates, Link }),
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
      "time to first tokens over the best choice, where paces are known",
      sum(({ tookS }) => tookS) / sum(({ bestS }) => bestS),
    ),
    line(
      "of these requests, those that took 1.25 of computing",
      sum(({ late }) => late) / sum(({ restored, computed }) => restored + computed),
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

const NAMES = { parts: "blocks", whole: "states" };

function moves(size, quick, cut) {
  const pools = quick ? 4 : POOLS;
  const all = Array.from({ length: pools }, (_none, seed) =>
    movesOf(seed, size, { Placement, cut }),
  );
  const bound = 1 / size + 0.02;
  const within = all.flatMap(({ join, leave }) => [join, leave]).filter((moved) => moved <= bound);
  const middle = (of) => quantile(all.map(of), 0.5);
  const line = (name, unit, value) =>
    describe({ name: `${size} vaults, ${NAMES[cut]}: ${name}`, unit, value });
  return [
    line(
      "moved when one comes, above 1/N",
      "points",
      (middle((one) => one.join) - 1 / (size + 1)) * 100,
    ),
    line(
      "of it between vaults that stay, at most",
      "points",
      Math.max(...all.map((one) => one.astray)) * 100,
    ),
    line(
      "pools in which one that comes or goes moves 1/N + 2 points at most",
      "",
      within.length / (2 * pools),
    ),
    line(
      "largest share over the mean",
      "",
      middle((one) => one.mostOverMean),
    ),
  ];
}

/** Returns the costs of each host and vault; those for 1,000 vaults are extrapolated from the last two sizes. */
function costs() {
  const all = SIZES.map((size) => ({ size, ...lookupOf(1, size, PARTS) }));
  const [small, large] = all.slice(-2);
  const paper = Object.fromEntries(
    ["us", "firstUs", "bytes"].map((of) => [
      of,
      onPaper([small.size, small[of]], [large.size, large[of]], PAPER),
    ]),
  );
  // Estimated from parts, because a part lies on one vault and each vault is asked once.
  const parts = PROMPT_BLOCKS / PART_BLOCKS;
  paper.asked = PAPER * (1 - (1 - 1 / PAPER) ** parts);
  return [...all, { size: PAPER, ...paper }].flatMap(({ size, asked, us, firstUs, bytes }) => {
    const name = size === PAPER ? `${size} vaults (on paper)` : `${size} vaults`;
    const line = (what, unit, value) => describe({ name: `${name}: ${what}`, unit, value });
    return [
      line(`vaults asked for a prompt of ${PROMPT_BLOCKS} blocks`, "", asked),
      line("placing it", "us", us),
      line("placing it while layouts are made", "us", firstUs),
      line("layouts that a host keeps", "bytes", bytes),
      line(`questions for members a second, ${ENGINES} hosts`, "", ENGINES / LIST_EVERY_S),
      line(`connections for questions and flushes, ${ENGINES} hosts`, "", ENGINES * size),
      line(
        `calls at each vault for a prompt of each of ${ENGINES} hosts`,
        "",
        (ENGINES * asked) / size,
      ),
    ];
  });
}
