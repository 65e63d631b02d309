// Owns what a pool costs as it grows, from the real placement: what moves, how uneven it is, who is asked, what a host computes and keeps.
import { hash } from "node:crypto";

const PROMPTS = 50;
/** Of 16 tokens: 16,384 tokens. */
export const PROMPT_BLOCKS = 1024;

const namesOf = (seed, count) =>
  Array.from({ length: count }, (_none, at) => `v${seed}-${at}:50051`);
const shareOf = (owners, is) =>
  owners.reduce((sum, owner, at) => sum + Number(is(owner, at)), 0) / owners.length;

/** Of `count` vaults of one capacity: one more comes, and one goes. `cut`: "parts" for blocks, "whole" for states. */
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
    /** Moved between vaults that neither came nor went: the larger one of both. */
    astray: Math.max(
      shareOf(before, (owner, at) => more[at] !== owner && more[at] !== count),
      shareOf(before, (owner, at) => less[at] !== owner && owner !== count - 1),
    ),
    mostOverMean: (Math.max(...owned) / before.length) * count,
  };
}

/** What one engine's host does for a prompt of 16,384 tokens, and keeps. */
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

/** By the power of the size that two measured ones tell: what no such pool was made for. */
export function onPaper([small, atSmall], [large, atLarge], size) {
  const power = Math.log(atLarge / atSmall) / Math.log(large / small);
  return atLarge * (size / large) ** power;
}
