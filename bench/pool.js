// Owns the figures of a pool of vaults: rates over shaped links, cost of a lost and a slow vault, look-ups, a drain.
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { chain, digest, records, storeAll } from "./lib/blocks.js";
import { describe, figure, interleaved, median, quantile, timed } from "./lib/figures.js";
import { TIERKV } from "./lib/paths.js";
import {
  BLOCKS,
  clientOf,
  GROUP,
  OVERFILL,
  PAGE_BYTES,
  PoolOfVaults,
  vaultsBehindLinks,
} from "./lib/pool-of-vaults.js";
import { attentionGroup, Shim } from "./lib/shim.js";
import { Stand } from "./lib/stand.js";

const MIB = 2 ** 20;
const CALL_MS = 30_000;
const LINK_MBIT = 200;
const SLOW_MBIT = 20;
const DRAIN_MBIT = 1000;
const LOOKUP_KEYS = 2000;
const LOOKUP_VAULTS = 8;
const WARM_UP = 50;
const DRAIN_MIB = 1000;
const DRAIN_RECORD_MIB = 1;
const DRAIN_PART = 50;
const FLOORS = {
  rate: { on: "ratio", least: 0.9 },
  lookup: { on: "ratio", most: 1.3 },
  drain: { on: "ratio", least: 0.8 },
};

export const titleOf = (part) =>
  ({
    links: `A pool of vaults, each behind its own link of ${LINK_MBIT} Mb/s`,
    losses: `The same with a slow vault`,
    lookup: `Look-up of ${LOOKUP_KEYS} keys over ${LOOKUP_VAULTS} vaults, beside one`,
    drain: `A vault is emptied over a link of ${DRAIN_MBIT / 1000} Gb/s`,
  })[part];

export async function run({ isQuick, say, part }) {
  const stand = new Stand();
  const [networks, opened] = [[], []];
  try {
    return await PARTS[part]({ isQuick, say, stand, networks, opened });
  } finally {
    for (const each of opened) await each.close();
    await stand.close();
    for (const network of networks) network.close();
  }
}

const PARTS = { links: overLinks, losses: withLosses, lookup: lookUps, drain: emptied };
const megabytesPerSecond = (mbit) => mbit / 8;

/** Returns MB/s of each round by label; `pools` lists counts of vaults and their redundancy. */
async function ratesOf({ isQuick, say, ...work }, vaults, pools, figures) {
  const rates = {};
  for (const [count, redundancy, isFilled] of pools) {
    const label = `${count} ${count === 1 ? "vault" : "vaults"}, ${redundancy}`;
    say(label);
    const pool = await PoolOfVaults.open(work, vaults.slice(0, count), redundancy);
    const measured = await pool.rates(roundsOf(isQuick), label);
    rates[label] = measured;
    const sum = count * megabytesPerSecond(LINK_MBIT);
    for (const what of ["restore", "save"]) {
      const beside = measured[what].map(() => sum);
      const goal = redundancy === "none" ? { floor: FLOORS.rate } : {};
      const line = { beside, of: "the links together", ...goal };
      figures.push(figure(`${label}: ${what}`, "MB/s", measured[what], line));
    }
    if (isFilled) figures.push(await pool.capacity(label));
    await pool.close();
  }
  return rates;
}

const roundsOf = (isQuick) => (isQuick ? 2 : 7);
const notesOf = (isQuick) => [
  `prompts of ${BLOCKS} blocks of ${PAGE_BYTES / 1024} KiB, raw, ${roundsOf(isQuick)} of each; MB/s of pages; from the prefetch to the last block placed, and from the first announced slot to the last acceptance`,
  "links: pairs of virtual interfaces, a namespace for each vault, shaped by tc tbf both ways; Ethernet, IP and TCP take 5 % of them",
];
const linked = (work) => vaultsBehindLinks(work, 4, LINK_MBIT, 4 * BLOCKS * PAGE_BYTES);

async function overLinks(work) {
  const figures = [];
  const pools = [
    [1, "none", true],
    [2, "none"],
    [3, "none"],
    [4, "none", true],
  ];
  await ratesOf(work, await linked(work), pools, figures);
  const held = `capacity: ${OVERFILL} times as many blocks as there is room for are saved, and those counted that are held`;
  return { figures, notes: [...notesOf(work.isQuick), held] };
}

async function withLosses(work) {
  const { isQuick, say } = work;
  const vaults = await linked(work);
  const figures = [];
  say("one link is slow");
  work.networks[3].pace(SLOW_MBIT);
  figures.push(...(await besideSlow(work, vaults, isQuick ? 1 : 3)));
  work.networks[3].pace(LINK_MBIT);
  return { figures, notes: notesOf(isQuick) };
}

/** Restores with the last vault behind a slow link: with an equal share, and with one that matches the link. */
async function besideSlow(work, vaults, rounds) {
  const slow = vaults.at(-1);
  const figures = [];
  let before = null;
  for (const weight of [1, SLOW_MBIT / LINK_MBIT]) {
    const pool = await PoolOfVaults.open(work, vaults, "none");
    await tierkv("vaults", "weight", slow, String(weight), "--config", pool.config);
    const { restore } = await pool.rates(rounds, `slow ${weight}`);
    figures.push(
      describe({
        name: `4 vaults, one of them behind ${SLOW_MBIT} Mb/s, its weight ${weight}: restore`,
        unit: "MB/s",
        value: median(restore),
        ...(before === null ? {} : { ratio: median(restore) / before, of: "weight 1" }),
      }),
    );
    before = median(restore);
    await tierkv("vaults", "weight", slow, "1", "--config", pool.config);
    await pool.close();
  }
  return figures;
}

async function tierkv(...argv) {
  const { stdout } = await promisify(execFile)(process.execPath, [TIERKV, ...argv]);
  return stdout;
}

async function lookUps({ isQuick, stand, say, opened }) {
  const samples = isQuick ? 100 : 1000;
  say("start nine vaults and two sidecars");
  const vaults = [];
  for (let at = 0; at < LOOKUP_VAULTS; at += 1) vaults.push(await stand.vault(64 * MIB));
  const shims = {};
  for (const [name, list] of Object.entries({ one: [await stand.vault(64 * MIB)], many: vaults })) {
    const { socket } = await stand.sidecar(list, { arenaBytes: 64 * MIB, codec: "raw" });
    shims[name] = await Shim.start(socket, {
      engine: `bench-${name}`,
      group: attentionGroup({ ...GROUP, layers: 1 }),
      maxModelLen: LOOKUP_KEYS * GROUP.tokens,
      namespace: digest("bench look-up"),
    });
    opened.push(shims[name]);
  }
  const blocks = chain("nobody has it", LOOKUP_KEYS, GROUP.tokens);
  const ask = (shim) =>
    timed(async () => {
      const placed = await shim.ask(blocks);
      shim.release();
      if (placed.length > 0) throw new Error("found what nobody has stored");
    });
  const measures = { one: () => ask(shims.one), many: () => ask(shims.many) };
  await interleaved(WARM_UP, measures);
  const seconds = await interleaved(samples, measures);
  const figures = [0.5, 0.99].flatMap((share) => {
    const ms = (name) => quantile(seconds[name], share) * 1e3;
    const label = `p${share * 100}`;
    const floor = share === 0.5 ? { floor: FLOORS.lookup } : {};
    const ratio = ms("many") / ms("one");
    return [
      describe({ name: `one vault, ${label}`, unit: "ms", value: ms("one") }),
      describe({
        name: `${LOOKUP_VAULTS} vaults, ${label}`,
        unit: "ms",
        value: ms("many"),
        ratio,
        of: "one vault",
        ...floor,
      }),
    ];
  });
  return {
    figures,
    notes: [
      `from an engine's prefetch of ${LOOKUP_KEYS} blocks that nobody holds to its answer, ${samples} of each in turns; ${LOOKUP_VAULTS + 1} vaults and two sidecars on one machine`,
    ],
  };
}

async function emptied(work) {
  const { isQuick, say, stand } = work;
  const mib = isQuick ? DRAIN_MIB / 5 : DRAIN_MIB;
  const vaults = await vaultsBehindLinks(work, 3, DRAIN_MBIT, 1.5 * DRAIN_MIB * MIB);
  say(`fill a vault with ${mib} MiB`);
  const source = clientOf(vaults[0]);
  const namespace = digest("bench drain");
  for (let at = 0; at * DRAIN_PART < mib; at += 1) {
    const part = records(namespace, `drain ${at}`, DRAIN_PART, DRAIN_RECORD_MIB * MIB);
    await storeAll(source, namespace, part, CALL_MS);
  }
  source.close();
  const { config } = await stand.sidecar(vaults, { arenaBytes: 64 * MIB, codec: "raw" });
  say("empty it");
  let moved = null;
  const argv = ["vaults", "drain", vaults[0], "--rate", "10GB", "--json", "--config", config];
  const seconds = await timed(async () => {
    const [{ moved: sum, left }] = JSON.parse(await tierkv(...argv)).drained;
    if (Object.keys(left).length > 0) throw new Error(`left: ${JSON.stringify(left)}`);
    moved = sum;
  });
  const value = moved.bytes / seconds / 1e6;
  return {
    figures: [
      describe({
        name: "a vault is emptied",
        unit: "MB/s",
        value,
        ratio: value / megabytesPerSecond(DRAIN_MBIT),
        of: "its link",
        floor: FLOORS.drain,
      }),
    ],
    notes: [
      `${moved.records} records of ${DRAIN_RECORD_MIB} MiB to two others, each behind such a link, with --rate above it; the start of the command is counted; without --rate half of the time is left to others`,
    ],
  };
}
