// Owns the figures of `[codec] kv = "auto"`: restores over shaped links, with each codec and with the chosen one.
import { SidecarLink } from "../dist/control/sidecar-link.js";
import { writeCertificate } from "../dist/sidecar/save/certificates.js";
import { codecId, LOSSY } from "../dist/sidecar/save/codecs.js";
import { chain, digest, noise } from "./lib/blocks.js";
import { figure, interleaved, timed } from "./lib/figures.js";
import { Network } from "./lib/network.js";
import { attentionGroup, ORDER, Shim } from "./lib/shim.js";
import { Stand } from "./lib/stand.js";
import { saveAll, touchAll } from "./lib/whole-way.js";

const MIB = 2 ** 20;
const CALL_MS = 30_000;
const SHAPE = { tokens: 16, layers: 16, heads: 8, dim: 128 };
const PAGE_BYTES = MIB;
/** Rate in Mb/s, null for the plain loopback; MiB of one restore. */
const LINKS = [
  { name: "100 Mb/s", mbit: 100, mib: 8 },
  { name: "1 Gb/s", mbit: 1000, mib: 48 },
  { name: "10 Gb/s", mbit: 10_000, mib: 64 },
  { name: "loopback", mbit: null, mib: 64 },
];
/** Without it `auto` would be exact. */
const CERTIFICATE = {
  model: "bench",
  weights: "files:bench",
  codec: codecId(LOSSY.name),
  version: LOSSY.version,
  order: ORDER,
  dtype: "bf16",
  prompts: 16,
  tokens: 256,
  kldMean: 1e-5,
  kldWorst: 1e-4,
  floor: 0,
  date: "2026-11-29",
  command: "none: a stand-in's model is certified without a measurement",
};
const FIXED = ["raw", "lossless", "int8-mean-had"];
const CODECS = [...FIXED, "auto"];

export const title = "the codec that `auto` chooses by the measured link, beside each by itself";

export async function run({ isQuick, say }) {
  const rounds = isQuick ? 3 : 9;
  const figures = [];
  const chosen = [];
  for (const link of LINKS) {
    say(link.name);
    const scene = await Scene.open(link, rounds);
    try {
      const seconds = await scene.restores(rounds);
      const form = await scene.form();
      chosen.push(`${link.name}: ${form.codec} (${form.why})`);
      const ms = (codec) => seconds[codec].map((value) => value * 1e3);
      for (const codec of FIXED)
        figures.push(figure(`${link.name}: ${link.mib} MiB as ${codec}`, "ms", ms(codec)));
      const beside = ms("int8-mean-had");
      const label = `${link.name}: ${link.mib} MiB as auto`;
      figures.push(figure(label, "ms", ms("auto"), { beside, of: "int8-mean-had" }));
    } finally {
      await scene.close();
    }
  }
  const notes = [
    `chosen: ${chosen.join("; ")}`,
    `blocks of 1 MiB in bf16 whose exponents take two values, so lossless is 1.45 times smaller; medians of ${rounds} rounds, codecs in turns; from the prefetch to the last block placed`,
    "links: virtual interfaces shaped by tc tbf both ways; sidecars, vault and shim share the processors",
  ];
  return { figures, notes };
}

/** A vault behind a link, and a sidecar for each codec. */
class Scene {
  static async open({ mbit, mib }, rounds) {
    const scene = new Scene();
    Object.assign(scene, { stand: new Stand(), network: null, mib });
    if (mbit !== null) {
      scene.network = new Network();
      scene.network.pace(mbit);
    }
    // Large enough to stay below half full, because `auto` saves bytes above that.
    const sets = CODECS.length * (rounds + 2);
    const address = await scene.stand.vault(3 * sets * mib * MIB, scene.network);
    scene.ways = {};
    for (const codec of CODECS) scene.ways[codec] = await scene.#way(address, codec);
    return scene;
  }

  async #way(address, codec) {
    const arenaBytes = 2 * this.mib * MIB;
    const certificates = this.stand.path("certificates");
    writeCertificate(certificates, CERTIFICATE);
    const { socket } = await this.stand.sidecar(address, { arenaBytes, codec, certificates });
    const link = new SidecarLink(socket);
    await link.hello(CALL_MS);
    const engine = `auto-${codec}`;
    const shim = await Shim.start(socket, {
      engine,
      group: attentionGroup(SHAPE),
      maxModelLen: this.mib * SHAPE.tokens,
      namespace: digest(engine),
      weights: CERTIFICATE.weights,
    });
    await touchAll(link, engine);
    const pages = noise(PAGE_BYTES + shim.slotCount * 64);
    for (let slot = 0; slot < shim.slotCount; slot += 1)
      shim.writeSlot(slot, pages.subarray(slot * 64, slot * 64 + PAGE_BYTES));
    const way = { codec, link, shim, sets: 0 };
    // The first restores measure the link in both directions.
    for (const _ of ["up", "down"]) await this.#restore(way);
    return way;
  }

  /** Saves a new set, then returns the seconds of its restore. */
  async #restore(way) {
    const { codec, link, shim } = way;
    const blocks = chain(`${codec} ${(way.sets += 1)}`, this.mib, SHAPE.tokens);
    await saveAll(shim, link, blocks);
    const seconds = await timed(() => shim.restore(blocks));
    shim.release();
    return seconds;
  }

  /** Returns the seconds of each codec's restores. */
  async restores(rounds) {
    const measures = Object.fromEntries(
      CODECS.map((codec) => [codec, () => this.#restore(this.ways[codec])]),
    );
    return await interleaved(rounds, measures);
  }

  async form() {
    const { vaults } = await this.ways.auto.link.status(CALL_MS);
    return vaults.kv[0].form;
  }

  async close() {
    for (const { link, shim } of Object.values(this.ways)) {
      await shim.close();
      link.close();
    }
    await this.stand.close();
    this.network?.close();
  }
}
