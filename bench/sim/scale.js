// Owns the cost of a growing pool, from the real placement: moved blocks, imbalance, vaults asked, time and memory of a host.
import { hash } from "node:crypto";

const PROMPTS = 50;
/** Blocks of 16 tokens: 16,384 tokens. */
export const PROMPT_BLOCKS = 1024;

const namesOf = (seed, count) =>
  Array.from({ length: count }, (_none, at) => `v${seed}-${at}:50051`);
const shareOf = (owners, is) =>
  owners.reduce((sum, owner, at) => sum + Number(is(owner, at)), 0) / owners.length;

/** Simulates one more and one fewer among `count` vaults of equal capacity. `cut`: "parts" for blocks, "whole" for states. */
export function movesOf(seed, count, { Placement, cut }) {
  const names = namesOf(seed, count + 1);
  const [less, before, more] = [count - 1, count, count + 1].map((size) =>
    new Placement(names.slice(0, size), undefined, cut).samples(),
  );
  const owned = Array(count).fill(0);
  for (const owner of before) owned[owner] += 1;
  return {
    join: shareOf(before, (owner, at) => more[at] !== owner),
    leave: shareOf(before, (owner, at) => less[at] !== owner),
    /** Share moved between vaults that neither came nor went, the larger of both cases. */
    astray: Math.max(
      shareOf(before, (owner, at) => more[at] !== owner && more[at] !== count),
      shareOf(before, (owner, at) => less[at] !== owner && owner !== count - 1),
    ),
    mostOverMean: (Math.max(...owned) / before.length) * count,
  };
}

/** Measures an engine host's time and memory for prompts of 16,384 tokens. */
export function lookupOf(seed, count, { Placement, LAYOUTS, RUN_BLOCKS, PART_BLOCKS }) {
  const placement = new Placement(namesOf(seed, count));
  const prompts = Array.from({ length: PROMPTS }, (_none, prompt) =>
    Buffer.concat(
      Array.from({ length: PROMPT_BLOCKS }, (_block, at) =>
        hash("sha256", `${seed}:${prompt}:${at}`, "buffer"),
      ),
    ),
  );
  const place = () => {
    const startedMs = performance.now();
    const asked = prompts.map((hashes) => new Set(placement.homesOf(hashes, () => false).owners));
    const us = ((performance.now() - startedMs) * 1000) / PROMPTS;
    return { us, asked: asked.reduce((sum, { size }) => sum + size, 0) / PROMPTS };
  };
  const first = place();
  const { us, asked } = place();
  const bytes = LAYOUTS * (RUN_BLOCKS / PART_BLOCKS) * count;
  return { asked, us, firstUs: first.us, bytes };
}

/** Extrapolates by the power law through two measured sizes, because no pool of that size exists. */
export function onPaper([small, atSmall], [large, atLarge], size) {
  const power = Math.log(atLarge / atSmall) / Math.log(large / small);
  return atLarge * (size / large) ** power;
}
