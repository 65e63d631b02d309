// Owns the figures of a real sidecar: engine pages in the arena to a vault and back, beside raw TCP and memcpy.
import { createLogger } from "../dist/base/log.js";
import { VaultClient } from "../dist/client/vault/vault-client.js";
import { SidecarLink } from "../dist/control/sidecar-link.js";
import { chain, digest, noise } from "./lib/blocks.js";
import { figure, gigabytesPerSecond, interleaved, perGigabyte, timed } from "./lib/figures.js";
import { attentionGroup, Shim } from "./lib/shim.js";
import { Stand } from "./lib/stand.js";
import { TCP_SAYS, TcpYardstick } from "./lib/tcp.js";
import { saveAll, touchAll } from "./lib/whole-way.js";

const MIB = 2 ** 20;
const CALL_MS = 30_000;
const ARENA_BYTES = 2 ** 31;
/** One layer of a block: 16 tokens, 8 heads of 128, K and V, bf16. */
const LAYER = { tokens: 16, heads: 8, dim: 128 };
const LAYER_BYTES = 64 * 1024;
const SHAPES = [4, 16, 64].map((layers) => ({ layers, pageBytes: layers * LAYER_BYTES }));
/** Bound for INT8 of numbers up to 2: half a step of 2/127, the bf16 rounding of the scale, and that of the result. */
const INT8_ERROR_MAX = 1.01 / 127 + 2 ** -8;

export const title =
  "Save and restore by a whole sidecar: arena -> vault -> verified and decoded in the arena";

export async function run({ isQuick, say }) {
  const setBytes = (isQuick ? 64 : 256) * MIB;
  const rounds = isQuick ? 3 : 9;
  const stand = new Stand();
  const yardstick = await TcpYardstick.open(stand, setBytes);
  try {
    const figures = [];
    for (const codec of ["raw", "int8"]) {
      const bench = await Bench.open(stand, yardstick, { codec, setBytes, rounds });
      try {
        for (const shape of SHAPES) {
          say(`${codec}, blocks of ${shape.pageBytes / 1024} KiB`);
          figures.push(...(await bench.measure(shape)));
        }
      } finally {
        bench.close();
      }
    }
    const notes = [
      `${setBytes / MIB} MiB of pages a round, medians of ${rounds} rounds, every line measured once in each round; new keys and an empty vault each time`,
      "wire: record bytes per second, divided by raw TCP in the same direction; pages: bytes of the engine's pages per second",
      "save: from the first announced slot to the vault's last acceptance, the engine's own copy into the slot apart; restore: from the prefetch to the last block placed; the first round's pages are compared with the originals",
      "processor time: of shim, sidecar and vault together, kernel included",
      TCP_SAYS,
    ];
    return { figures, notes };
  } finally {
    yardstick.close();
    await stand.close();
  }
}

const newSpent = (counter) => ({ counter, wireBytes: [], cpuSeconds: [] });

/** One sidecar with one codec, and a vault behind it. */
class Bench {
  static async open(stand, yardstick, options) {
    const bench = new Bench();
    Object.assign(bench, options, { stand, yardstick });
    const address = await stand.vault(options.setBytes * 3);
    const { codec } = options;
    const sidecar = await stand.sidecar(address, { arenaBytes: ARENA_BYTES, codec });
    bench.socket = sidecar.socket;
    const logger = createLogger("bench", { level: "silent" });
    bench.vault = new VaultClient({ address, name: "kv", logger });
    bench.link = new SidecarLink(sidecar.socket);
    await bench.link.hello(CALL_MS);
    return bench;
  }

  close() {
    this.vault.close();
    this.link.close();
  }

  async measure(shape) {
    const count = this.setBytes / shape.pageBytes;
    const engine = `bench-${this.codec}-${shape.layers}`;
    const shim = await Shim.start(this.socket, {
      engine,
      group: attentionGroup({ ...LAYER, layers: shape.layers }),
      maxModelLen: count * LAYER.tokens,
      namespace: digest(`bench ${this.codec} ${shape.layers}`),
    });
    try {
      await touchAll(this.link, engine);
      const pageOf = fillArena(shim, shape.pageBytes);
      await this.#prove(shim, pageOf, count, shape.pageBytes);
      return await this.#time(shim, count, shape);
    } finally {
      await shim.close();
    }
  }

  /** Saves and restores one set and compares every page; also warms up. */
  async #prove(shim, pageOf, count, pageBytes) {
    const blocks = chain("proof", count, LAYER.tokens);
    const saved = await saveAll(shim, this.link, blocks);
    const placed = await this.#restore(shim, blocks);
    for (const [index, slot] of placed.entries()) {
      const page = shim.readSlot(slot, pageBytes);
      if (!this.#isSame(page, pageOf(saved[index]))) {
        throw new Error(`block ${index} came back with other bytes (${this.codec})`);
      }
    }
  }

  #isSame(page, original) {
    if (this.codec === "raw") return page.equals(original);
    for (let at = 0; at < page.length; at += 2) {
      if (Math.abs(bf16(page, at) - bf16(original, at)) > INT8_ERROR_MAX) return false;
    }
    return true;
  }

  async #time(shim, count, { pageBytes }) {
    const { yardstick, setBytes } = this;
    const target = Buffer.alloc(setBytes, 1);
    const spent = { save: newSpent("bytes_sent"), restore: newSpent("bytes_fetched") };
    let blocks = [];
    const measures = {
      memcpy: () => timed(() => yardstick.set.copy(target)),
      tcpOut: () => timed(() => yardstick.send()),
      tcpIn: () => timed(() => yardstick.receive()),
      save: async (round) => {
        await this.vault.flush(null, CALL_MS);
        blocks = chain(`round ${round}`, count, LAYER.tokens);
        return this.#measured(spent.save, () => saveAll(shim, this.link, blocks));
      },
      restore: () => this.#measured(spent.restore, () => this.#restore(shim, blocks)),
    };
    const seconds = await interleaved(this.rounds, measures);
    return this.#figures(seconds, spent, pageBytes);
  }

  #figures(seconds, spent, pageBytes) {
    const { codec, setBytes } = this;
    const size = pageBytes < MIB ? `${pageBytes / 1024} KiB` : `${pageBytes / MIB} MiB`;
    const label = `${codec}, ${size}`;
    const tcp = (name) => gigabytesPerSecond(setBytes, seconds[name]);
    const wireRate = (name) =>
      spent[name].wireBytes.map((bytes, round) => bytes / seconds[name][round] / 1e9);
    const cpu = (name) => perGigabyte(spent[name].cpuSeconds, setBytes);
    const pages = (name) => gigabytesPerSecond(setBytes, seconds[name]);
    const besideTcp = (name) => ({ beside: tcp(name), of: "raw TCP" });
    return [
      figure(`${label}: save, wire`, "GB/s", wireRate("save"), besideTcp("tcpOut")),
      figure(`${label}: save, pages`, "GB/s", pages("save")),
      figure(`${label}: restore, wire`, "GB/s", wireRate("restore"), besideTcp("tcpIn")),
      figure(`${label}: restore, pages`, "GB/s", pages("restore")),
      figure(`${label}: save, processor time`, "s/GB of pages", cpu("save")),
      figure(`${label}: restore, processor time`, "s/GB of pages", cpu("restore")),
      figure(`${label}: raw TCP out`, "GB/s", tcp("tcpOut")),
      figure(`${label}: raw TCP in`, "GB/s", tcp("tcpIn")),
      figure(`${label}: memcpy, one core`, "GB/s", pages("memcpy")),
    ];
  }

  /** Returns the seconds of `work`, and notes its bytes and CPU time. */
  async #measured({ counter, wireBytes, cpuSeconds }, work) {
    const { [counter]: bytesBefore } = await this.#counters();
    const cpuBefore = this.stand.cpuSeconds();
    const seconds = await timed(work);
    cpuSeconds.push(this.stand.cpuSeconds() - cpuBefore);
    const { [counter]: bytesAfter } = await this.#counters();
    wireBytes.push(bytesAfter - bytesBefore);
    return seconds;
  }

  async #counters() {
    return (await this.link.status(CALL_MS)).counters;
  }

  async #restore(shim, blocks) {
    const slots = await shim.restore(blocks);
    shim.release();
    return slots;
  }
}

/** Writes every slot of a new arena with different numbers; returns the pages by slot. */
function fillArena(shim, pageBytes) {
  const stepBytes = 64;
  const pool = noise(pageBytes + shim.slotCount * stepBytes);
  const pageOf = (slot) => pool.subarray(slot * stepBytes, slot * stepBytes + pageBytes);
  for (let slot = 0; slot < shim.slotCount; slot += 1) shim.writeSlot(slot, pageOf(slot));
  return pageOf;
}

const asFloat = new DataView(new ArrayBuffer(4));

function bf16(bytes, at) {
  asFloat.setUint32(0, bytes.readUInt16LE(at) << 16);
  return asFloat.getFloat32(0);
}
