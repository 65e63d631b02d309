// Owns a pool of vaults behind separate links with a sidecar in front, and the measuring of its rates and capacity.
import { countBits, packKeys } from "../../dist/base/block.js";
import { createLogger } from "../../dist/base/log.js";
import { VaultClient } from "../../dist/client/vault/vault-client.js";
import { SidecarLink } from "../../dist/control/sidecar-link.js";
import { chain, digest, noise } from "./blocks.js";
import { describe, interleaved, timed } from "./figures.js";
import { Network } from "./network.js";
import { attentionGroup, Shim } from "./shim.js";
import { saveAll, touchAll } from "./whole-way.js";

const CALL_MS = 30_000;
/** Four layers of a block: 16 tokens, 8 heads of 128, K and V, bf16. */
export const GROUP = { tokens: 16, layers: 4, heads: 8, dim: 128 };
export const PAGE_BYTES = 4 * 64 * 1024;
/** Blocks of a prompt: 4,096 tokens. */
export const BLOCKS = 256;
const ARENA_BYTES = 6 * BLOCKS * PAGE_BYTES;
/** Factor of the vaults' capacity that is saved to fill them. */
export const OVERFILL = 2;
const CAPACITY_FLOOR = { on: "ratio", least: 0.95 };

export async function vaultsBehindLinks({ stand, networks }, count, mbit, maxBytes) {
  const vaults = [];
  for (let at = 0; at < count; at += 1) {
    const network = new Network(at + 1);
    networks.push(network);
    vaults.push(await stand.vault(maxBytes, network));
    network.pace(mbit);
  }
  return vaults;
}

/** A sidecar in front of vaults, and a stand-in for an engine. */
export class PoolOfVaults {
  /** `kvCold`: the vaults as the configuration writes them. */
  static async open({ stand, opened }, vaults, redundancy, kvCold = vaults) {
    const pool = new PoolOfVaults();
    opened.push(pool);
    const given = { arenaBytes: ARENA_BYTES, codec: "raw", redundancy };
    const { socket, config } = await stand.sidecar(kvCold, given);
    const engine = `bench-${opened.length}`;
    pool.namespace = digest(engine);
    pool.shim = await Shim.start(socket, {
      engine,
      group: attentionGroup(GROUP),
      maxModelLen: BLOCKS * GROUP.tokens,
      namespace: pool.namespace,
    });
    pool.link = new SidecarLink(socket);
    await pool.link.hello(CALL_MS);
    await touchAll(pool.link, engine);
    const page = noise(PAGE_BYTES);
    for (let slot = 0; slot < pool.shim.slotCount; slot += 1) pool.shim.writeSlot(slot, page);
    pool.clients = vaults.map((address) => clientOf(address));
    await pool.flush();
    return Object.assign(pool, { config, vaults });
  }

  async flush() {
    for (const client of this.clients) await client.flush(null, CALL_MS);
  }

  async restore(blocks) {
    const placed = await this.shim.ask(blocks);
    this.shim.release();
    return placed.length;
  }

  async save(blocks) {
    await saveAll(this.shim, this.link, blocks);
  }

  /** Returns MB/s of each round. */
  async rates(rounds, label) {
    const ofSeconds = (seconds) => seconds.map((each) => (BLOCKS * PAGE_BYTES) / each / 1e6);
    const prompts = Array.from({ length: rounds + 1 }, (_none, round) =>
      chain(`${label} ${round}`, BLOCKS, GROUP.tokens),
    );
    const measures = {
      save: (round) => timed(() => this.save(prompts[round])),
      restore: (round) =>
        timed(async () => {
          const placed = await this.restore(prompts[round]);
          if (placed !== BLOCKS) throw new Error(`${placed} of ${BLOCKS} blocks came back`);
        }),
      flush: () => this.flush(),
    };
    // One save and restore first, because the sidecar learns the links.
    await measures.save(rounds);
    await measures.restore(rounds);
    const { save, restore } = await interleaved(rounds, measures);
    return { save: ofSeconds(save), restore: ofSeconds(restore) };
  }

  async capacity(label) {
    const { maxBytes } = await this.clients[0].stats(CALL_MS);
    const room = Math.floor((maxBytes * this.clients.length) / PAGE_BYTES);
    const blocks = [];
    for (let at = 0; at * BLOCKS < OVERFILL * room; at += 1) {
      const prompt = chain(`${label} fills ${at}`, BLOCKS, GROUP.tokens);
      blocks.push(...prompt);
      await this.save(prompt);
    }
    const keys = Buffer.concat(blocks.map(({ hash }) => packKeys(hash, 0, 0)));
    const held = await Promise.all(
      this.clients.map(async (client) =>
        countBits(await client.lookup(this.namespace, keys, CALL_MS), blocks.length),
      ),
    );
    const value = (held.reduce((sum, count) => sum + count, 0) * PAGE_BYTES) / 1e6;
    await this.flush();
    return describe({
      name: `${label}: held`,
      unit: "MB of pages",
      value,
      ratio: (value * 1e6) / (maxBytes * this.clients.length),
      of: "the memory together",
      floor: CAPACITY_FLOOR,
    });
  }

  /** Idempotent. */
  async close() {
    const { shim, link, clients = [] } = this;
    this.shim = undefined;
    link?.close();
    for (const client of clients) client.close();
    await shim?.close();
  }
}

export function clientOf(address) {
  return new VaultClient({
    address,
    name: "kv",
    logger: createLogger("bench", { level: "silent" }),
  });
}
