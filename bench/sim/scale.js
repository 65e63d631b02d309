// Owns what a pool costs as it grows, from the real ring: who is asked, what moves, how uneven it is, what a host computes and keeps.
import { hash } from "node:crypto";
import { chanceOf } from "./chance.js";

const SAMPLES = 20_000;
const PROMPTS = 200;
/** Of 16 blocks of 16 tokens: 16,384 tokens. */
const PROMPT_RUNS = 64;
const RING_NODES = 100;

const namesOf = (seed, count) =>
  Array.from({ length: count }, (_none, at) => `v${seed}-${at}:50051`);
const ringOf = (names, { Ring }) => new Ring(names.map((name, node) => ({ name, node })));
const ownerOf = (ring, name) => ring.ownersOf(name).next().value;

/** Of `count` vaults of one capacity: one more comes, and one goes. Shares of all names. */
export function movesOf(seed, count, parts) {
  const names = namesOf(seed, count + 1);
  const [before, joined] = [ringOf(names.slice(0, count), parts), ringOf(names, parts)];
  const left = ringOf(names.slice(0, count - 1), parts);
  const owned = new Float64Array(count);
  let [byJoin, byLeave, astray] = [0, 0, 0];
  for (let at = 0; at < SAMPLES; at += 1) {
    const name = `${seed}:${at}`;
    const owner = ownerOf(before, name);
    owned[owner] += 1;
    const [afterJoin, afterLeave] = [ownerOf(joined, name), ownerOf(left, name)];
    if (afterJoin !== owner) {
      byJoin += 1;
      if (afterJoin !== count) astray += 1;
    }
    if (afterLeave !== owner) {
      byLeave += 1;
      if (owner !== count - 1) astray += 1;
    }
  }
  return {
    join: byJoin / SAMPLES,
    leave: byLeave / SAMPLES,
    /** Moved between vaults that neither came nor went. */
    astray: astray / SAMPLES,
    mostOverMean: (Math.max(...owned) / SAMPLES) * count,
  };
}

/** What one engine's host does for a prompt of 16,384 tokens. */
export function lookupOf(seed, count, parts) {
  const chance = chanceOf(seed);
  const ring = ringOf(namesOf(seed, count), parts);
  const anchors = Array.from({ length: PROMPTS }, () =>
    Array.from({ length: PROMPT_RUNS }, () => hash("sha256", `${chance.next()}`, "buffer")),
  );
  let asked = 0;
  const startedMs = performance.now();
  for (const prompt of anchors)
    asked += new Set(prompt.map((anchor) => ownerOf(ring, anchor))).size;
  const us = ((performance.now() - startedMs) * 1000) / PROMPTS;
  return { asked: asked / PROMPTS, us, positions: count * RING_NODES };
}
