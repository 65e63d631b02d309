// Owns the proof that tierKV never delays a first token: times with it over times without, by link and prompt length.
import { execFileSync } from "node:child_process";
import { randomInt } from "node:crypto";
import { fileURLToPath } from "node:url";
import { thisMachine } from "../dist/extras/stand/machine.js";
import { engineEnvironment } from "./lib/engine.js";
import { describe, median, quantile } from "./lib/figures.js";
import { Network } from "./lib/network.js";
import { TIERKV } from "./lib/paths.js";
import { Stand } from "./lib/stand.js";

const SCRIPT = fileURLToPath(new URL("./never_slower.py", import.meta.url));
const TIMEOUT_MS = 1_200_000;
const GIB = 2 ** 30;
const MODEL = { kind: "llama", hidden: 512, layers: 8, heads: 8, "kv-heads": 4, "head-dim": 64 };
const MODEL_LEN = 4096;
const BLOCK_TOKENS = 128;
/** Prompts by their tokens, for each link; more prompts narrow the noise. */
const FEW = { 100: 9, 500: 6, 1000: 5, 2000: 3, 4000: 2 };
const MANY = { 100: 7, 500: 7, 1000: 6, 2000: 4, 4000: 2 };
const QUICK = { 100: 2, 1000: 2, 2000: 1 };
/** Links in Mb/s, 0 for unshaped. Each part takes a few minutes. */
const PARTS = {
  open: { links: "0,10000", rounds: FEW, changes: 0, misses: 1 },
  gigabit: { links: "2500,1000", rounds: FEW, changes: 0, misses: 0 },
  100: { links: "100", rounds: FEW, changes: 1, misses: 0 },
  10: { links: "10", rounds: MANY, changes: 0, misses: 0 },
};
/** Allowed ratio, beyond the engine's own noise. */
const SLOWER_MOST = 1.03;
const GAIN = { on: "value", least: 85 };
const NEAR_HIT = { on: "ratio", most: 1.15 };
const NEAR_HIT_MBIT = 1000;
/** Least gain relative to computing; below it the share is noise. */
const GAIN_LEAST = 0.1;

/** Draws of medians from the engine's own pairs, and the share of draws that the noise bound covers. */
const DRAWS = 2000;
const SURE = 0.95;

export const titleOf = (part) => {
  const links = PARTS[part].links.split(",").map((mbit) => nameOf(Number(mbit)));
  return `First token with tierKV over without: ${links.join(", ")}`;
};

export async function run({ isQuick, say, part }) {
  // Made first, because it throws where it is not allowed and nothing is open yet.
  const network = new Network();
  const stand = new Stand();
  try {
    const { dtype, cores } = thisMachine();
    say("make a model, start a vault behind a shaped link, and a sidecar");
    const shape = { ...MODEL, seed: 1, vocab: 1024, dtype, "max-position": MODEL_LEN };
    const model = await stand.makeModel(shape);
    const address = await stand.vault(2 * GIB, network);
    const options = { arenaBytes: GIB, codec: "int8", restore: "" };
    const { socket, config } = await stand.sidecar(address, options);
    const { netns, here, there } = network;
    const { rounds, ...asked } = isQuick ? { ...PARTS[part], rounds: QUICK } : PARTS[part];
    const work = { ...asked, rounds: JSON.stringify(rounds) };
    const flags = { model, dtype, socket, netns, here, there, ...work };
    const args = Object.entries(flags).flatMap(([name, value]) => [`--${name}`, String(value)]);
    say("two engines, one with tierKV: each prompt computed, then asked again over its link");
    // Both engines get the same binding, because a connector alone changes it. One core is left to sidecar and vault.
    const env = engineEnvironment(cores.slice(0, Math.max(1, cores.length - 1)));
    const measured = await stand.python([SCRIPT, ...args], { env, timeoutMs: TIMEOUT_MS });
    return resultOf(measured, accountsOf(config), rounds);
  } finally {
    await stand.close();
    network.close();
  }
}

/** Returns the sidecar's explanations of the engine's requests. */
function accountsOf(config) {
  const args = [TIERKV, "explain", "with-", "--json", "--config", config];
  return JSON.parse(execFileSync(process.execPath, args, { encoding: "utf8" })).requests;
}

function resultOf({ cells, changes, counters }, accounts, rounds) {
  const bytesPerToken = counters.bytes_sent / (counters.blocks_saved * BLOCK_TOKENS);
  const noise = noiseOf([...cells, ...changes]);
  const told = { bytesPerToken, noise, accounts };
  const counted = Object.entries(rounds).map(([tokens, count]) => `${count} of ${tokens}`);
  const figures = [
    ...groups(
      cells.filter(({ beside }) => beside !== undefined),
      ({ tokens }) => tokens,
    ).map((group) => missFigure(group, told)),
    ...groups(cells, ({ mbit, tokens }) => `${mbit} ${tokens}`).flatMap((group) =>
      cellFigures(group, told),
    ),
    ...changes.map((cell) => changeFigure(cell, told)),
    ...errorFigures([...cells, ...changes], accounts),
  ];
  const wrong = [...cells, ...changes].filter(({ same }) => !same).length;
  const notes = [
    "time from adding a request to its first token; without: another engine on the same core, its mean before and after",
    "A/A: the engine without tierKV after over before; of medians of as many such pairs 95 % lie within that of 1, and so much above 1.03 is noise",
    "theoretical gain: computing, less an answer from the engine's own cache and the bytes at the link's full rate",
    `prompts per link, by their tokens: ${counted.join(", ")}; each asked once, stored before over the open link; ${bytesPerToken.toFixed(0)} bytes a token on the wire`,
    `${wrong} of ${cells.length + changes.length} first tokens differ from the other engine's (INT8)`,
  ];
  return { figures, notes, cells, changes };
}

function groups(cells, keyOf) {
  return [...new Set(cells.map(keyOf))].map((key) => cells.filter((cell) => keyOf(cell) === key));
}

/** Tokens that can be restored: whole blocks, without the last token, which is always computed. */
const usableOf = (tokens) => Math.floor((tokens - 1) / BLOCK_TOKENS) * BLOCK_TOKENS;

const without = ({ first, second }) => (first + second) / 2;

const besideOf = ({ beside }) => beside;

/** Returns, by length, how far from 1 a median of `count` A/A ratios lies in SURE of all draws. */
function noiseOf(cells) {
  const byTokens = groups(cells, ({ tokens }) => tokens).map((group) => {
    const ratios = group.map(({ first, second }) => second / first);
    return [group[0].tokens, (count) => spreadOf(ratios, count)];
  });
  return new Map(byTokens);
}

function spreadOf(ratios, count) {
  const draw = () => median(Array.from({ length: count }, () => ratios[randomInt(ratios.length)]));
  return quantile(
    Array.from({ length: DRAWS }, draw).map((one) => Math.abs(one - 1)),
    SURE,
  );
}

const nameOf = (mbit) => (mbit === 0 ? "not shaped" : `${mbit} Mb/s`);

function ratioFigure(name, cells, took, noise, base = without) {
  const [{ tokens }] = cells;
  const aside = noise.get(tokens)(cells.length);
  return describe({
    name: `${name}, ${tokens} tokens`,
    unit: "ms",
    value: median(cells.map(took)) * 1e3,
    ratio: median(cells.map((cell) => took(cell) / base(cell))),
    min: Math.min(...cells.map(took)) * 1e3,
    max: Math.max(...cells.map(took)) * 1e3,
    of: `without (A/A ${aside.toFixed(2)})`,
    floor: { on: "ratio", most: Number((SLOWER_MOST + aside).toFixed(2)) },
  });
}

function missFigure(cells, { noise }) {
  return ratioFigure("nothing held", cells, ({ miss }) => miss, noise, besideOf);
}

function cellFigures(cells, { noise, bytesPerToken, accounts }) {
  const [{ mbit, tokens }] = cells;
  const name = nameOf(mbit);
  const figures = [ratioFigure(name, cells, (cell) => cell.with, noise)];
  figures[0].note = withCounts(cells.map((cell) => choiceOf(cell, accounts)));
  const usable = usableOf(tokens);
  const wireS = mbit === 0 ? 0 : (usable * bytesPerToken * 8) / (mbit * 1e6);
  const gains = cells.map((cell) => {
    const theory = without(cell) - cell.own - wireS;
    return theory < without(cell) * GAIN_LEAST ? null : (without(cell) - cell.with) / theory;
  });
  if (usable === 0 || gains.includes(null)) return figures;
  const share = { name: `${name}, ${tokens} tokens: share of the theoretical gain`, unit: "%" };
  figures.push(describe({ ...share, value: median(gains) * 100, floor: GAIN }));
  if (mbit !== NEAR_HIT_MBIT) return figures;
  figures.push(
    describe({
      name: `${name}, ${tokens} tokens: restored over wire time and own hit`,
      unit: "ms",
      value: median(cells.map((cell) => cell.with)) * 1e3,
      ratio: median(cells.map((cell) => cell.with / (wireS + cell.own))),
      of: "wire + own hit",
      floor: NEAR_HIT,
      note: partsOf(cells, wireS, accounts),
    }),
  );
  return figures;
}

/** Returns the parts of a restore's time: medians in ms. */
function partsOf(cells, wireS, accounts) {
  const found = cells.map((cell) => accountOf(cell, accounts)).filter((one) => one !== undefined);
  const ms = (values) => median(values).toFixed(1);
  const actual = (what) => ms(found.map((account) => account.actual[what] ?? 0));
  const own = ms(cells.map((cell) => cell.own * 1e3));
  const took = `looked up ${actual("lookup")}, fetched ${actual("fetch")}, from placed to loaded ${actual("load")}`;
  return `${took}; the wire alone ${(wireS * 1e3).toFixed(1)}, own hit ${own}`;
}

function changeFigure(cell, { noise, accounts }) {
  const when = cell.after === null ? "before the request" : `${cell.after} s into it`;
  const name = `from ${nameOf(cell.from)} to ${nameOf(cell.mbit)} ${when}`;
  const figure = ratioFigure(name, [cell], (one) => one.with, noise);
  return { ...figure, note: choiceOf(cell, accounts) };
}

/** Returns each choice once, with its count. */
function withCounts(choices) {
  const each = [...new Set(choices)];
  const count = (choice) => choices.filter((one) => one === choice).length;
  return each.map((choice) => `${count(choice)} x ${choice}`).join("; ");
}

function accountOf({ name }, accounts) {
  return accounts.findLast(({ req }) => req === name || req.startsWith(`${name}-`));
}

function choiceOf(cell, accounts) {
  const account = accountOf(cell, accounts);
  if (account === undefined) return "not asked";
  const { choice, why, end, placedTokens } = account;
  return `${choice} (${why}), ${end}, ${placedTokens ?? 0} tokens placed`;
}

/** Returns the error of the cost model: predicted over measured time, where the link did not change after the choice. */
function errorFigures(cells, accounts) {
  const errors = cells.flatMap((cell) => {
    const account = accountOf(cell, accounts);
    if (account === undefined || typeof cell.after === "number") return [];
    const { choice, end, predicted } = account;
    const { fetch, load, compute, recompute } = predicted;
    const isRefused = choice === "recomputed" && recompute !== null;
    const isDone = choice !== "recomputed" && end === "complete" && compute !== null;
    if (!isRefused && !isDone) return [];
    // An own hit is added, because predictions cover only the differences between the choices.
    const { tokens } = cell;
    const rest = tokens / Math.max(BLOCK_TOKENS, usableOf(tokens));
    const seconds = isRefused ? (recompute / 1e3) * rest : (fetch + load) / 1e3 + cell.own;
    return [(Math.abs(seconds - cell.with) / cell.with) * 100];
  });
  if (errors.length === 0) return [];
  const line = (what, share) =>
    describe({ name: `cost model: error, ${what}`, unit: "%", value: quantile(errors, share) });
  return [line("p50", 0.5), line("p90", 0.9)];
}
