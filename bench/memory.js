// Owns the figure of memory over time: growth of a sidecar and a vault while gigabytes pass through both.
import { createLogger } from "../dist/base/log.js";
import { VaultClient } from "../dist/client/vault/vault-client.js";
import { SidecarLink } from "../dist/control/sidecar-link.js";
import { chain, digest } from "./lib/blocks.js";
import { describe, figure, median } from "./lib/figures.js";
import { attentionGroup, Shim } from "./lib/shim.js";
import { Stand } from "./lib/stand.js";
import { saveAll, touchAll } from "./lib/whole-way.js";

const MIB = 2 ** 20;
const GB = 1e9;
const CALL_MS = 30_000;
const BLOCKS = 256;
const LAYERS = 16;
const SHAPE = { tokens: 16, layers: LAYERS, heads: 8, dim: 128 };
const PAGE_BYTES = LAYERS * 64 * 1024;
const VAULT_BYTES = 768 * MIB;
const ARENA_BYTES = 1024 * MIB;
const FLOOR = { on: "value", most: 5 };
/** Traffic until Node's heap is stable: in 60 GB a sidecar grew from 121 to 150 MB in the first 20, and stayed below 157. */
const WARM_UP_GB = 20;

export const title = "Memory of a sidecar and a vault while records pass through";

export async function run({ isQuick, say }) {
  const moved = (isQuick ? 1 : 10) * GB;
  const warmUp = (isQuick ? 1 : WARM_UP_GB) * GB;
  const stand = new Stand();
  try {
    const address = await stand.vault(VAULT_BYTES);
    const { socket } = await stand.sidecar(address, { arenaBytes: ARENA_BYTES, codec: "raw" });
    const link = new SidecarLink(socket);
    const logger = createLogger("bench", { level: "silent" });
    const vault = new VaultClient({ address, name: "kv", logger });
    await link.hello(CALL_MS);
    const engine = "bench-memory";
    const shim = await Shim.start(socket, {
      engine,
      group: attentionGroup(SHAPE),
      maxModelLen: BLOCKS * SHAPE.tokens,
      namespace: digest("bench memory"),
    });
    try {
      await touchAll(link, engine);
      const pass = passer(shim, link, vault);
      say("warming up");
      await pass(warmUp);
      say(`${moved / GB} GB through both`);
      const samples = [];
      await pass(moved, () => samples.push(stand.memoryBytes()));
      const figures = Object.keys(samples[0]).flatMap((name) => growth(name, samples));
      const notes = [
        `after ${warmUp / GB} GB, ${moved / GB} GB more: new blocks of ${PAGE_BYTES / MIB} MiB saved, restored, released and flushed, raw; half that way each`,
        "private memory: resident; of a sidecar without shared memory (the arena has its full size from the start)",
        `read after each ${(2 * BLOCKS * PAGE_BYTES) / MIB} MiB; growth: the median of the second half of the readings over that of the first`,
        "a single reading swings by what the allocator has not given back yet of records just sent",
      ];
      return { figures, notes };
    } finally {
      await shim.close();
      link.close();
      vault.close();
    }
  } finally {
    await stand.close();
  }
}

/** Saves and restores new blocks until `bytes` have passed. */
function passer(shim, link, vault) {
  let round = 0;
  return async (bytes, onRound = () => {}) => {
    for (let passed = 0; passed < bytes; passed += 2 * BLOCKS * PAGE_BYTES) {
      // Flushed before each round, because a full vault would evict part of a set before its restore.
      await vault.flush(null, CALL_MS);
      const blocks = chain(`memory ${(round += 1)}`, BLOCKS, SHAPE.tokens);
      await saveAll(shim, link, blocks);
      await shim.restore(blocks);
      shim.release();
      onRound();
    }
  };
}

function growth(name, samples) {
  const bytes = samples.map((sample) => sample[name]);
  const middle = Math.ceil(bytes.length / 2);
  const [first, second] = [bytes.slice(0, middle), bytes.slice(middle)].map(median);
  return [
    figure(
      `${name}: private memory`,
      "MB",
      bytes.map((of) => of / 1e6),
    ),
    describe({
      name: `${name}: growth`,
      unit: "%",
      value: (second / first - 1) * 100,
      floor: FLOOR,
    }),
  ];
}
