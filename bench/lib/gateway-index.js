// Owns the figures of the gateway's index: events per second, bytes per block, and the time to load a saved index.
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { BlockIndex } from "../../dist/gateway/index/index-of-blocks.js";
import { loadIndex, saveIndex } from "../../dist/gateway/members/saved-index.js";
import { batchOf, BLOCK } from "../sim/fleet.js";
import { describe, figure, interleaved, timed } from "./figures.js";

const ENGINES = 4;
/** Blocks per batch, as after a long prompt. */
const BATCH = 256;
const ROUNDS = 5;

export function stored(tokens, firstHash = 1n) {
  const count = Math.floor(tokens.length / BLOCK);
  return batchOf({
    type: "BlockStored",
    block_hashes: Array.from({ length: count }, (_none, at) => firstHash + BigInt(at)),
    parent_block_hash: null,
    token_ids: tokens.slice(0, count * BLOCK),
    block_size: BLOCK,
  });
}

/** Encodes a batch as vLLM publishes it: `blocks` of a prompt, with hashes of 64 bits. */
function promptOf(number, blocks) {
  const drawn = randomBytes(blocks * 8);
  const hashes = Array.from({ length: blocks }, (_none, at) => drawn.readBigUInt64LE(8 * at));
  return batchOf({
    type: "BlockStored",
    block_hashes: hashes,
    parent_block_hash: null,
    token_ids: Array.from(
      { length: blocks * BLOCK },
      (_none, at) => (at * 7919 + number) % 152_064,
    ),
    block_size: BLOCK,
    lora_id: null,
    medium: "GPU",
    lora_name: null,
    extra_keys: hashes.map(() => null),
    group_idx: 0,
    kv_cache_spec_kind: "full_attention",
  });
}

/** As decoding publishes them: one block of one request, behind the block before. */
const STEP_BLOCKS = 1;

/** Microseconds of processor time for each batch, from bytes to an index that grows from empty. */
function timeOf(batches, isNamed) {
  const index = new BlockIndex(1);
  index.want(0, { hasNames: isNamed, every: 16, hasExtras: false });
  const before = process.cpuUsage();
  for (const batch of batches) index.apply(0, batch);
  const { user, system } = process.cpuUsage(before);
  return (user + system) / batches.length;
}

/** Measures the intake: blocks of long prompts a second, and events of single blocks. */
export function eventRate(blocks) {
  const long = Array.from({ length: Math.ceil(blocks / BATCH) }, (_none, at) =>
    promptOf(at, BATCH),
  );
  const short = Array.from({ length: Math.ceil(blocks / 20) }, (_none, at) =>
    promptOf(at, STEP_BLOCKS),
  );
  const [rates, named, each] = [[], [], []];
  for (let round = 0; round < ROUNDS; round += 1) {
    rates.push(BATCH / timeOf(long, false));
    named.push(BATCH / timeOf(long, true));
    each.push(timeOf(short, false));
  }
  const rate = "events: million blocks a second of processor time";
  return [
    figure(rate, "1/us", rates, { floor: { on: "value", least: 2 } }),
    figure(`${rate}, hashes not agreed on`, "1/us", named),
    figure("event of one block, from its bytes on", "us", each, {
      floor: { on: "value", most: 20 },
    }),
  ];
}

/** Measures the memory of the process. Each engine holds its own blocks; half as many were evicted before. */
export async function bytesPerBlock(blocks) {
  const before = await bytesInUse();
  const index = new BlockIndex(ENGINES, blocks);
  fill(index, 1.5 * blocks, false);
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
  const { rss, heapTotal, external } = process.memoryUsage();
  return rss - heapTotal - external;
}

function fill(index, blocks, isNamed = true) {
  for (let slot = 0; slot < ENGINES; slot += 1) {
    index.want(slot, { hasNames: isNamed, every: 0, hasExtras: false });
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
    holder: slot,
    events: `engine:${slot}`,
    mark: { sequence: 1, digest: "" },
    form: null,
  }));
  fill(index, blocks);
  const load = () => {
    const saved = loadIndex(path);
    const next = new BlockIndex(ENGINES);
    for (const { holder, events } of followed) next.load(holder, saved.get(events).blocks);
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
