// Owns a simulated fleet in virtual time: engines with queue, cache and quadratic prefill, behind real gateway code.
import { encode } from "@msgpack/msgpack";
import { Engine } from "../../dist/gateway/engines/engine.js";
import { BlockIndex, namesOf } from "../../dist/gateway/index/index-of-blocks.js";
import { Router } from "../../dist/gateway/score/router.js";
import { Tokenizer } from "../../dist/gateway/tokens/tokenizer.js";
import { chanceOf } from "./chance.js";

export const BLOCK = 16;
/** Milliseconds of a prefill, as published for gpt-oss-120b on an H200: fixed, per token, per pair of tokens. */
const [EACH_MS, TOKEN_MS, PAIR_MS] = [26, 0.0246, 6.2e-7];
/** Random relative change of each prefill's time. */
const NOISE = 0.15;
/** Milliseconds from an answer's first token to its end. */
const ANSWER_MS = 1000;
const IN_FLIGHT_MAX = 64;

function prefillMs(from, to) {
  return EACH_MS + TOKEN_MS * (to - from) + (PAIR_MS * (to * to - from * from)) / 2;
}

/** Encodes events as an engine publishes them. */
export const batchOf = (...events) =>
  Buffer.from(encode([1.5, events, null], { useBigInt64: true }));

/** Names of a prompt's blocks, which engines here use as hashes. */
function hashesOf(tokens) {
  const { blocks } = namesOf(tokens, BLOCK, [], null);
  return Array.from({ length: blocks.length / 8 }, (_none, at) => blocks.readBigUInt64LE(8 * at));
}

/** One engine: computes prompts one after the other, and evicts ends of prefixes first. */
class SimEngine {
  #held = new Map();
  freeMs = 0;

  constructor(blocksMax) {
    this.blocksMax = blocksMax;
  }

  /** Returns the tokens that were held, and the batch of cache events; null: nothing changed. */
  take(names, tokens) {
    const missing = names.findIndex((name) => !this.#held.has(name));
    const first = missing < 0 ? names.length : missing;
    for (const name of [...names].reverse()) {
      this.#held.delete(name);
      this.#held.set(name, true);
    }
    const gone = [];
    for (const name of this.#held.keys()) {
      if (this.#held.size <= this.blocksMax) break;
      this.#held.delete(name);
      gone.push(name);
    }
    const told = [];
    if (first < names.length) {
      told.push({
        type: "BlockStored",
        block_hashes: names.slice(first),
        parent_block_hash: first === 0 ? null : names[first - 1],
        token_ids: tokens.slice(first * BLOCK, names.length * BLOCK),
        block_size: BLOCK,
      });
    }
    if (gone.length > 0) told.push({ type: "BlockRemoved", block_hashes: gone });
    // Capped, because the last token is always computed.
    const held = Math.min(first * BLOCK, tokens.length - 1);
    return { held, told: told.length === 0 ? null : batchOf(...told) };
  }
}

/** Builds one gateway from the real parts, without its front. */
export function gatewayOf(preset, engines, { ttftMs = null, blocksMax } = {}) {
  const made = Array.from(
    { length: engines },
    (_none, at) => new Engine(`127.0.0.1:${at + 1}`, IN_FLIGHT_MAX),
  );
  for (const engine of made) engine.setUp([{ id: "m" }]);
  const index = new BlockIndex(engines, blocksMax);
  const members = new Map(
    made.map((engine, holder) => [engine, [{ holder, agreement: null, rank: null, waiting: 0 }]]),
  );
  for (let at = 0; at < engines; at += 1) index.trust(at, true);
  const router = new Router({
    preset,
    fleet: {
      engines: made,
      generation: 1,
      able: (model) => made.filter((engine) => engine.takes(model)),
    },
    index,
    tokenizer: new Tokenizer({ timeoutMs: 1000, own: null, onMade() {} }),
    lookups: null,
    roster: { membersOf: (engine) => members.get(engine) },
    logger: null,
    ttftMs,
    prefillTokens: 1e9,
    objectives: new Map(),
  });
  return { made, index, router };
}

export const asked = (tokens, fairness = "") => ({
  id: "",
  path: "/v1/completions",
  body: { model: "m", prompt: tokens },
  model: "m",
  session: null,
  fairness,
  objective: "",
});

/** Runs `work` with its own clock and randomness, then restores the process's. */
async function inVirtualTime(clock, chance, work) {
  const { now } = performance;
  const { random } = Math;
  Object.defineProperty(performance, "now", {
    value: () => clock.ms,
    configurable: true,
    writable: true,
  });
  Math.random = chance;
  try {
    return await work();
  } finally {
    Object.defineProperty(performance, "now", { value: now, configurable: true, writable: true });
    Math.random = random;
  }
}

/**
 * Returns the results of the requests that `next` makes from a time and a source of randomness: `{ gapMs, tokens, kind, key, done }`
 * or null at the end. Each goes to one of `gateways`, which receive the same events and share nothing else.
 */
export function simulate(
  next,
  { preset, engines = 4, gateways = 1, cacheTokens, ttftMs, seed = 1 },
) {
  const clock = { ms: 1 };
  const { next: random } = chanceOf(seed);
  return inVirtualTime(clock, random, async () => {
    const fronts = Array.from({ length: gateways }, () => gatewayOf(preset, engines, { ttftMs }));
    const sims = Array.from({ length: engines }, () => new SimEngine(cacheTokens / BLOCK));
    const seen = new Set();
    const results = [];
    const later = [];
    const at = (ms, work) => later.push({ ms, work });
    const runUntil = (ms) => {
      for (;;) {
        const due = later.filter((one) => one.ms <= ms).sort((a, b) => a.ms - b.ms);
        if (due.length === 0) break;
        const [{ ms: first }] = due;
        clock.ms = first;
        for (let n = later.length - 1; n >= 0; n -= 1) {
          if (later[n].ms === first) later.splice(n, 1)[0].work();
        }
      }
      clock.ms = ms;
    };
    for (let request = next(clock.ms, random); request !== null; request = next(clock.ms, random)) {
      runUntil(clock.ms + request.gapMs);
      const { tokens, kind = "", key = "", done = () => {} } = request;
      const names = hashesOf(tokens);
      const known = names.findIndex((name) => !seen.has(name));
      const reusable = Math.min((known < 0 ? names.length : known) * BLOCK, tokens.length - 1);
      for (const name of names) seen.add(name);
      const front = fronts[Math.floor(random() * gateways)];
      const choice = await front.router.choose(asked(tokens, key));
      const able = front.made.filter(({ hasRoom }) => hasRoom);
      const result = {
        kind,
        key,
        reusable,
        held: 0,
        ttftMs: null,
        predictedMs: null,
        tokens: tokens.length,
      };
      results.push(result);
      if (choice.isLate || able.length === 0) {
        done(clock.ms);
        continue;
      }
      const [engine] = choice.order(able);
      const sent = choice.send(engine);
      engine.inFlight += 1;
      result.predictedMs = Number(sent.receipt["x-tierkv-predicted-ttft-ms"]);
      const slot = front.made.indexOf(engine);
      const sim = sims[slot];
      const { held, told } = sim.take(names, tokens);
      result.held = held;
      const sentMs = clock.ms;
      sim.freeMs =
        Math.max(sim.freeMs, sentMs) +
        prefillMs(held, tokens.length) * (1 + NOISE * (2 * random() - 1));
      at(sim.freeMs, () => {
        result.ttftMs = clock.ms - sentMs;
        sent.begun(true);
        if (told !== null) for (const { index } of fronts) index.apply(slot, told);
      });
      at(sim.freeMs + ANSWER_MS, () => {
        sent.ended();
        engine.inFlight -= 1;
        done(clock.ms);
      });
    }
    runUntil(clock.ms + 1e9);
    return results;
  });
}

const exponential = (mean, chance) => -mean * Math.log(1 - chance());

const GROUPS = 40;
const [SYSTEM, TURN, TURNS] = [1408, 400, 6];

/** Conversations behind shared system prompts: about two thirds of a prompt are shared by a group, the rest by its own turns. */
export function conversations(requests, perSecond) {
  const idle = [];
  let left = requests;
  let unique = 1_000_000;
  return (_now, chance) => {
    if (left === 0) return null;
    left -= 1;
    let one =
      idle.length > 0 && chance() < 0.8
        ? idle.splice(Math.floor(chance() * idle.length), 1)[0]
        : null;
    if (one === null) {
      const group = Math.floor(chance() * GROUPS);
      one = {
        turns: 0,
        tokens: Array.from({ length: SYSTEM }, (_none, at) => group * 10_000 + at),
      };
    }
    one.turns += 1;
    one.tokens = [...one.tokens, ...Array.from({ length: TURN }, () => (unique += 1))];
    const { tokens, turns } = one;
    const done = () => (turns < TURNS ? void idle.push(one) : undefined);
    return { gapMs: exponential(1000 / perSecond, chance), tokens, done };
  };
}

/** Prompts with one common prefix and nothing else in common. */
export function onePrefix(requests, perSecond) {
  let left = requests;
  let unique = 1_000_000;
  const prefix = Array.from({ length: SYSTEM }, (_none, at) => at);
  return (_now, chance) => {
    if (left === 0) return null;
    left -= 1;
    const tokens = [...prefix, ...Array.from({ length: TURN }, () => (unique += 1))];
    return { gapMs: exponential(1000 / perSecond, chance), tokens };
  };
}

/** Prompts that share nothing: `kinds` are `{ kind, key, perSecond, tokens: () => number }`. */
export function strangers(requests, kinds) {
  let left = requests;
  let unique = 0;
  const total = kinds.reduce((sum, { perSecond }) => sum + perSecond, 0);
  return (_now, chance) => {
    if (left === 0) return null;
    left -= 1;
    let drawn = chance() * total;
    const one = kinds.find(({ perSecond }) => (drawn -= perSecond) < 0) ?? kinds[0];
    const { kind, key } = one;
    const tokens = Array.from({ length: one.tokens(chance) }, () => (unique += 1));
    return { gapMs: exponential(1000 / total, chance), tokens, kind, key };
  };
}
