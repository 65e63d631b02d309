// Owns the proof that a decision keeps nothing of its prompt once the answer has begun, because an answer may take an hour.
import { queryObjects } from "node:v8";
import { expect, test } from "vitest";
import { asked, gatewayOf } from "../../../bench/sim/fleet.js";
import { batchOf, stored } from "../../support/kv-batches.ts";

const SIZE = 16;
const ANSWERS = 50;

/** Buffers that are still reachable; one for each prompt has the names of its blocks. */
const buffers = (): number => queryObjects(Buffer, { format: "count" });

test("hashes of a prompt are let go with the first byte of its answer", async () => {
  const { made, index, router } = gatewayOf("earliest-token", 2);
  // An engine that publishes nothing shows no size of its blocks.
  const tokens = Array.from({ length: SIZE }, (_none, at) => at);
  index.apply(0, batchOf(stored(1n, null, tokens)));
  const prompt = (seed: number): number[] =>
    Array.from({ length: 10 * SIZE + 1 }, (_none, at) => seed * 1_000 + at);
  const before = buffers();
  const open = [];
  for (let at = 0; at < ANSWERS; at += 1) {
    const choice = await router.choose(asked(prompt(at)) as never);
    const [engine] = choice.order(made);
    open.push({ choice, sent: choice.send(engine!) });
  }
  const held = buffers();
  expect(held - before).toBeGreaterThan(0.9 * ANSWERS);
  for (const { choice, sent } of open) {
    sent.begun(true);
    choice.release();
  }
  expect(held - buffers()).toBeGreaterThan(0.9 * ANSWERS);
  for (const { sent } of open) sent.ended();
});
