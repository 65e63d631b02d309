// Owns the cost of pool code with a single vault: beside a bare client, and a list of one beside one address.
import { countBits, KeyPacker } from "../dist/base/block.js";
import { createLogger } from "../dist/base/log.js";
import { newSidecarCounters } from "../dist/base/metrics.js";
import { lookUp } from "../dist/sidecar/restore/lookup.js";
import { openPools } from "../dist/sidecar/vaults/pools.js";
import { openGates, openLinks } from "../dist/sidecar/vaults/vaults.js";
import { chain, digest, records, storeAll } from "./lib/blocks.js";
import { describe, figure, interleaved, median, timed } from "./lib/figures.js";
import { BLOCKS, clientOf, GROUP, PAGE_BYTES, PoolOfVaults } from "./lib/pool-of-vaults.js";
import { Stand } from "./lib/stand.js";

const MIB = 2 ** 20;
const CALL_MS = 30_000;
const KEYS = 2000;
const WARM_UP = 50;
/** Look-ups by a sidecar for each save and restore. */
const ASKS = 20;

export const title = "One vault: the code of pools beside a bare client, and a list of one";

export async function run({ isQuick, say }) {
  const stand = new Stand();
  const opened = [];
  try {
    const address = await stand.vault(4 * BLOCKS * PAGE_BYTES + 64 * MIB);
    say("look-ups and homes in this process");
    const own = await besideBareClient(address, isQuick ? 200 : 2000);
    say("one address and a list of one, two sidecars");
    const ways = await besideOneAddress({ stand, opened }, address, isQuick ? 3 : 30);
    return {
      figures: [...own.figures, ...ways],
      notes: [
        `look-ups: half of ${KEYS} keys are there; the bare client packs the keys and asks, in turns with the sidecar's own look-up over a pool of that client`,
        `prompts of ${BLOCKS} blocks of ${PAGE_BYTES / 1024} KiB, raw; bench, vault and two sidecars on one machine, in turns`,
      ],
    };
  } finally {
    for (const each of opened) await each.close();
    await stand.close();
  }
}

async function besideBareClient(address, samples) {
  const client = clientOf(address);
  const namespace = digest("bench alone");
  try {
    const items = records(namespace, "alone", KEYS, 64);
    await storeAll(client, namespace, items.slice(0, KEYS / 2), CALL_MS);
    const hashes = Buffer.concat(items.map(({ key }) => key.subarray(0, 32)));
    const vaults = { kv: [client], ssm: [] };
    const pools = openPools(vaults);
    const context = {
      namespace,
      shards: 1,
      cache: null,
      pools,
      gates: openGates(vaults, openLinks(vaults)),
      isWanted: () => true,
      timeoutMs: CALL_MS,
      counters: newSidecarCounters(),
      logger: createLogger("bench", { level: "silent" }),
    };
    const check = (held) => {
      const count = countBits(held, KEYS);
      if (count !== KEYS / 2) throw new Error(`look-up found ${count} of ${KEYS} records`);
    };
    const measures = {
      bare: () =>
        timed(async () => {
          const packer = new KeyPacker(KEYS);
          for (let at = 0; at < KEYS; at += 1) packer.add(hashes, at, 0, 1);
          check(await client.lookup(namespace, packer.keys, CALL_MS));
        }),
      pooled: () =>
        timed(async () => {
          const answer = await lookUp([{ group: 0, class: "kv", hashes }], context);
          check(answer.groups[0].held);
        }),
      homes: () =>
        timed(() => {
          for (let at = 0; at < KEYS; at += 1) {
            const hash = hashes.subarray(at * 32, at * 32 + 32);
            if (pools.kv.homeOf(hash, hash, at).owner !== 0) throw new Error("another vault");
          }
        }),
    };
    await interleaved(WARM_UP, measures);
    const seconds = await interleaved(samples, measures);
    const ms = (name) => seconds[name].map((each) => each * 1e3);
    const beside = { beside: ms("bare"), of: "the bare client" };
    return {
      figures: [
        figure(`look-up of ${KEYS} keys, bare client`, "ms", ms("bare")),
        figure(`look-up of ${KEYS} keys, pool of one`, "ms", ms("pooled"), beside),
        describe({
          name: "where a block is saved to, pool of one",
          unit: "µs",
          value: (median(seconds.homes) / KEYS) * 1e6,
        }),
      ],
    };
  } finally {
    client.close();
  }
}

async function besideOneAddress(work, address, rounds) {
  const pools = {};
  for (const [name, given] of Object.entries({ address, list: [address] })) {
    const pool = await PoolOfVaults.open(work, [address], "none", given);
    pools[name] = { pool, prompts: promptsOf(name, rounds) };
    await pool.save(pools[name].prompts[rounds]);
    await pool.restore(pools[name].prompts[rounds]);
  }
  const nobody = chain("nobody has it", BLOCKS, GROUP.tokens);
  const measures = {};
  const asks = {};
  for (const [name, { pool, prompts }] of Object.entries(pools)) {
    asks[`${name} look-up`] = () => timed(() => pool.restore(nobody));
    measures[`${name} save`] = (round) => timed(() => pool.save(prompts[round]));
    measures[`${name} restore`] = (round) =>
      timed(async () => {
        const placed = await pool.restore(prompts[round]);
        if (placed !== BLOCKS) throw new Error(`${placed} of ${BLOCKS} blocks came back`);
      });
    measures[`${name} flush`] = () => pool.flush();
  }
  // Short measures get more rounds, because a busy machine's pauses are longer than they are.
  const seconds = {
    ...(await interleaved(rounds * ASKS, asks)),
    ...(await interleaved(rounds, measures)),
  };
  return ["look-up", "restore", "save"].map((what) =>
    figure(
      `a list of one: ${what} of a prompt`,
      "ms",
      seconds[`list ${what}`].map((each) => each * 1e3),
      {
        beside: seconds[`address ${what}`].map((each) => each * 1e3),
        of: "one address",
      },
    ),
  );
}

const promptsOf = (name, rounds) =>
  Array.from({ length: rounds + 1 }, (_none, round) =>
    chain(`${name} ${round}`, BLOCKS, GROUP.tokens),
  );
