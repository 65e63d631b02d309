// Owns the figures of a hand-off: one sidecar saves, another waits and restores, by shared memory and by a loopback vault.
import { readdirSync, readFileSync, readlinkSync, rmSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { createLogger } from "../dist/base/log.js";
import { SharedVault } from "../dist/client/region/shared-vault.js";
import { SidecarLink } from "../dist/control/sidecar-link.js";
import { chain, digest, noise } from "./lib/blocks.js";
import { figure, interleaved, timed } from "./lib/figures.js";
import { attentionGroup, Shim } from "./lib/shim.js";
import { Stand } from "./lib/stand.js";
import { touchAll } from "./lib/whole-way.js";

const MIB = 2 ** 20;
const CALL_MS = 30_000;
const ARENA_BYTES = 1280 * MIB;
/** 16 tokens, 64 layers of 8 heads of 128, K and V, bf16. */
const SHAPE = { tokens: 16, layers: 64, heads: 8, dim: 128 };
const PAGE_BYTES = 4 * MIB;
/** 146.8 MB. */
const BLOCKS = 35;
const REGION_BYTES = 1024 * MIB;
/** Full after seven rounds, to try whether a full vault keeps handed-over records. */
const VAULT_BYTES = 1024 * MIB;
const FLOOR = { on: "ratio", most: 0.5 };
/** A prefill in chunks: blocks of each, and how long one takes to compute. */
const CHUNK_BLOCKS = 5;
const CHUNK_MS = 100;
/** Bound on bytes through descriptors (hashes, slot numbers, frames), relative to the pages handed over. */
const SAID_MAX = 0.01;

export const title = "Hand-off of 146 MB: saved by one sidecar, waited for and restored by another";

export async function run({ isQuick, say }) {
  const rounds = isQuick ? 3 : 7;
  const figures = [];
  for (const codec of ["raw", "int8-mean-had"]) {
    say(`${codec} records`);
    const stand = new Stand();
    const path = `/dev/shm/tierkv-bench-${process.pid}`;
    try {
      figures.push(...(await measure(stand, path, { codec, rounds })));
    } finally {
      await stand.close();
      rmSync(path, { force: true });
    }
  }
  const bytes = (BLOCKS * PAGE_BYTES) / 1e6;
  const notes = [
    `${BLOCKS} blocks of ${PAGE_BYTES / MIB} MiB (${bytes.toFixed(1)} MB of pages: 16 tokens, 64 layers, 8 heads of 128, bf16), medians of ${rounds} rounds, both ways in each round; the first round's pages are compared`,
    "from the first announced slot of the producer, when the consumer is asked, too, to the last block in the consumer's arena; without prefill",
    `left when the prefill ends: through shared memory, ${CHUNK_BLOCKS} blocks every ${CHUNK_MS} ms, from the announcement of the last on`,
    "loopback: a vault process of this machine over 127.0.0.1, its lanes as configured by default",
    "bytes said: what both sidecars passed through any descriptor, shim's sockets among them, over the bytes of pages; no network socket was open with shared memory",
  ];
  return { figures, notes };
}

async function measure(stand, path, { codec, rounds }) {
  const logger = createLogger("bench", { level: "silent" });
  const size = { maxBytes: REGION_BYTES, mustFit: true, coherence: "hardware" };
  const region = await SharedVault.open({ address: `shm:${path}`, name: "kv", logger, ...size });
  // Closed at once: the region stays, and both sidecars open it as it is.
  region.close();
  const ways = {
    shared: await Pair.open(stand, `shm:${path}`, codec),
    loopback: await Pair.open(stand, await stand.vault(VAULT_BYTES), codec),
  };
  try {
    for (const pair of Object.values(ways)) await pair.prove();
    const said = [];
    const seconds = await interleaved(rounds, {
      shared: async (round) => {
        const before = ways.shared.descriptorBytes();
        const took = await ways.shared.handOver(`round ${round}`);
        said.push((ways.shared.descriptorBytes() - before) / (BLOCKS * PAGE_BYTES));
        return took;
      },
      loopback: (round) => ways.loopback.handOver(`round ${round}`),
      chunked: (round) => ways.shared.handOverChunks(`chunks ${round}`),
    });
    if (ways.shared.networkSockets() > 0) throw new Error("a sidecar has a network socket");
    const ms = (name) => seconds[name].map((one) => one * 1000);
    const beside = { beside: ms("loopback"), of: "a loopback vault", floor: FLOOR };
    return [
      figure(`${codec}: hand-off`, "ms", ms("shared"), beside),
      figure(`${codec}: hand-off over the loopback`, "ms", ms("loopback")),
      figure(`${codec}: left of it when the prefill ends`, "ms", ms("chunked"), {
        beside: ms("shared"),
        of: "all at once",
        floor: FLOOR,
      }),
      figure(`${codec}: bytes said`, "", said, { floor: { on: "value", most: SAID_MAX } }),
    ];
  } finally {
    for (const pair of Object.values(ways)) await pair.close();
  }
}

/** A producing and a consuming sidecar on the same vault. */
class Pair {
  static async open(stand, address, codec) {
    const pair = new Pair();
    pair.codec = codec;
    const options = { arenaBytes: ARENA_BYTES, codec };
    pair.sidecars = [await stand.sidecar(address, options), await stand.sidecar(address, options)];
    const [producer, consumer] = pair.sidecars;
    pair.producer = await start(producer, "producer", { producer: 1 });
    pair.consumer = await start(consumer, "consumer", {});
    for (let slot = 0; slot < pair.producer.slotCount; slot += 1) {
      pair.producer.writeSlot(slot, noise(PAGE_BYTES, slot + 1));
    }
    return pair;
  }

  /** Returns the seconds of a hand-over. */
  async handOver(name) {
    const blocks = chain(name, BLOCKS, SHAPE.tokens);
    const handoff = BLOCKS * SHAPE.tokens;
    const seconds = await timed(async () => {
      const asked = this.consumer.restore(blocks, { handoff });
      this.saved = await this.producer.save(blocks);
      this.placed = await asked;
    });
    this.consumer.release();
    return seconds;
  }

  /** Returns the seconds from the last chunk's announcement on; earlier chunks are fetched while the producer computes. */
  async handOverChunks(name) {
    const blocks = chain(name, BLOCKS, SHAPE.tokens);
    const asked = this.consumer.restore(blocks, { handoff: BLOCKS * SHAPE.tokens });
    let at = 0;
    for (; at + CHUNK_BLOCKS < BLOCKS; at += CHUNK_BLOCKS) {
      await this.producer.save(blocks.slice(at, at + CHUNK_BLOCKS));
      await sleep(CHUNK_MS);
    }
    const seconds = await timed(async () => {
      await this.producer.save(blocks.slice(at));
      await asked;
    });
    this.consumer.release();
    return seconds;
  }

  async prove() {
    await this.handOver("proof");
    for (const [index, slot] of this.placed.entries()) {
      const page = this.consumer.readSlot(slot, PAGE_BYTES);
      const isSame = page.equals(noise(PAGE_BYTES, this.saved[index] + 1));
      // INT8 pages differ from the original, but must not be the slot's previous page.
      if (isSame !== (this.codec === "raw") || page.every((byte) => byte === 0)) {
        throw new Error(`block ${index} came with other bytes (${this.codec})`);
      }
    }
  }

  descriptorBytes() {
    const counts = this.sidecars.map(({ pid }) => {
      const text = readFileSync(`/proc/${pid}/io`, "utf8");
      return [...text.matchAll(/^[rw]char: (\d+)$/gm)].map(([, count]) => Number(count));
    });
    return counts.flat().reduce((sum, count) => sum + count, 0);
  }

  networkSockets() {
    return this.sidecars.reduce((sum, { pid }) => sum + openNetworkSockets(pid), 0);
  }

  async close() {
    await this.producer.close();
    await this.consumer.close();
  }
}

async function start({ socket }, engine, hello) {
  const shim = await Shim.start(socket, {
    engine,
    hello,
    group: attentionGroup(SHAPE),
    maxModelLen: BLOCKS * SHAPE.tokens,
    namespace: digest("bench hand-off"),
  });
  const link = new SidecarLink(socket);
  await link.hello(CALL_MS);
  await touchAll(link, engine);
  link.close();
  return shim;
}

/** Counts a process's open sockets other than Unix sockets. */
function openNetworkSockets(pid) {
  const tables = ["tcp", "tcp6", "udp", "udp6"].map((name) =>
    readFileSync(`/proc/${pid}/net/${name}`, "utf8"),
  );
  const known = new Set(
    tables.flatMap((text) => text.split("\n").map((row) => row.trim().split(/\s+/)[9])),
  );
  return readdirSync(`/proc/${pid}/fd`).filter((fd) => {
    const [, inode] = /^socket:\[(\d+)\]$/.exec(linkOf(`/proc/${pid}/fd/${fd}`)) ?? [];
    return inode !== undefined && known.has(inode);
  }).length;
}

function linkOf(path) {
  try {
    return readlinkSync(path);
  } catch {
    return "";
  }
}
