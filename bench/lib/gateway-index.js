// Owns the figures of the gateway's index: events per second, bytes per block, and the time to load a saved index.
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { encode } from "@msgpack/msgpack";
import { readBatch } from "../../dist/gateway/events/batch.js";
import { BlockIndex } from "../../dist/gateway/index/index-of-blocks.js";
import { loadIndex, saveIndex } from "../../dist/gateway/index/saved-index.js";
import { BLOCK } from "../sim/fleet.js";
import { describe, figure, interleaved, timed } from "./figures.js";

const ENGINES = 4;
/** Blocks per batch, as after a long prompt. */
const BATCH = 256;
const ROUNDS = 5;

export function stored(tokens, firstHash = 1n) {
  const blocks = Array.from({ length: Math.floor(tokens.length / BLOCK) }, (_none, at) => ({
    hash: firstHash + BigInt(at),
    tokens: tokens.slice(at * BLOCK, (at + 1) * BLOCK),
    extra: [],
  }));
  return { kind: "stored", tier: "gpu", parent: null, blockSize: BLOCK, blocks, group: 0 };
}

/** Encodes a batch as vLLM publishes it: maps, hashes of 32 bytes. */
function batchOf(number) {
  const drawn = randomBytes(BATCH * 32);
  const hashes = Array.from({ length: BATCH }, (_none, at) =>
    drawn.subarray(at * 32, (at + 1) * 32),
  );
  const event = {
    type: "BlockStored",
    block_hashes: hashes,
    parent_block_hash: null,
    token_ids: Array.from({ length: BATCH * BLOCK }, (_none, at) => (at * 7919 + number) % 152_064),
    block_size: BLOCK,
    lora_id: null,
    medium: "GPU",
    lora_name: null,
    extra_keys: hashes.map(() => null),
    group_idx: 0,
  };
  return Buffer.from(encode([1.5, [event], null]));
}

/** Measures blocks per second of CPU, GC included, from bytes to an index that grows from empty. */
export function eventRate(blocks) {
  const batches = Array.from({ length: Math.ceil(blocks / BATCH) }, (_none, at) => batchOf(at));
  const rates = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    const index = new BlockIndex(1);
    const before = process.cpuUsage();
    for (const batch of batches) for (const event of readBatch(batch)) index.apply(0, event);
    const { user, system } = process.cpuUsage(before);
    rates.push((batches.length * BATCH) / (user + system));
  }
  const floor = { on: "value", least: 2 };
  return [figure("events: million blocks a second of processor time", "1/us", rates, { floor })];
}

/** Measures the index's typed arrays. Each engine holds its own blocks; half as many were evicted before. */
export async function bytesPerBlock(blocks) {
  const before = await bytesInUse();
  const index = new BlockIndex(ENGINES, blocks);
  fill(index, 1.5 * blocks);
  const bytes = (await bytesInUse()) - before;
  let held = 0;
  for (let slot = 0; slot < ENGINES; slot += 1) held += index.blocks(slot);
  const name = `index of ${blocks.toLocaleString("en")} blocks: a block`;
  const floor = { on: "value", most: 60 };
  return describe({ name, unit: "B", value: bytes / held, floor });
}

/** Collects several times, because freed buffers are still counted for a turn or two. */
async function bytesInUse() {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc");
  for (let turn = 0; turn < 3; turn += 1) {
    collect();
    await setTimeout(50);
  }
  return process.memoryUsage().arrayBuffers;
}

function fill(index, blocks) {
  for (let slot = 0; slot < ENGINES; slot += 1) {
    for (let at = 0; at < blocks / ENGINES; at += 1000) {
      const first = slot * 1e8 + at * BLOCK;
      const tokens = Array.from({ length: 1000 * BLOCK }, (_none, n) => first + n);
      index.apply(slot, stored(tokens, BigInt(slot * 1e8 + at + 1)));
    }
  }
}

/** Times an index of four engines, written and read again. */
export async function warmStart(folder, blocks) {
  const path = join(folder, "index");
  const index = new BlockIndex(ENGINES);
  const followed = Array.from({ length: ENGINES }, (_none, slot) => ({
    slot,
    events: `engine:${slot}`,
    mark: { sequence: 1, digest: "" },
  }));
  fill(index, blocks);
  const load = () => {
    const saved = loadIndex(path);
    const next = new BlockIndex(ENGINES, undefined, saved.seeds);
    for (const { slot, events } of followed) next.restore(slot, saved.engines.get(events));
  };
  const { save, again } = await interleaved(3, {
    save: () => timed(() => saveIndex(path, index, followed)),
    again: () => timed(load),
  });
  const name = `${blocks.toLocaleString("en")} blocks`;
  return [
    figure(`index of ${name}, saved beside events`, "s", save),
    figure(`index of ${name}, warm`, "s", again, { floor: { on: "value", most: 2 } }),
  ];
}
