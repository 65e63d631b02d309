// Owns the figures of the gateway: what it adds to a first byte and to each event, what a decision takes, how often prompts are found.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { Agent, request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Engine } from "../dist/gateway/engines/engine.js";
import { BlockIndex } from "../dist/gateway/index/index-of-blocks.js";
import { Router } from "../dist/gateway/score/router.js";
import { Tokenizer } from "../dist/gateway/tokens/tokenizer.js";
import { describe, figure, interleaved, quantile, timed } from "./lib/figures.js";
import { TIERKV } from "./lib/paths.js";

const SSE_ENGINE = fileURLToPath(new URL("./lib/sse-engine.js", import.meta.url));
const PLAIN_PROXY = fileURLToPath(new URL("./lib/plain-proxy.js", import.meta.url));
const TICKS_PER_SECOND = 100;
const BLOCK = 16;

export const title = "The gateway: added time, CPU per event, decisions, prompts found";

export async function run({ isQuick }) {
  const folder = mkdtempSync(join(tmpdir(), "tierkv-bench-"));
  const children = [];
  const start = async (argv) => {
    const child = spawn(process.execPath, argv, { stdio: ["ignore", "pipe", "ignore"] });
    children.push(child);
    const [line] = await once(child.stdout, "data");
    return { pid: child.pid, url: JSON.parse(String(line).split("\n", 1)[0]).url };
  };
  try {
    const engine = await start([SSE_ENGINE]);
    const config = join(folder, "tierkv.toml");
    const address = engine.url.slice("http://".length);
    const socket = join(folder, "run", "g.sock");
    writeFileSync(
      config,
      `[gateway]\nlisten = "127.0.0.1:0"\nengines = ["${address}"]\nsocket = "${socket}"\n`,
    );
    const plain = await start([PLAIN_PROXY, engine.url]);
    const gateway = await start([TIERKV, "gateway", "--json", "--config", config]);
    return {
      figures: [
        ...(await addedTime(engine, plain, gateway, isQuick ? 200 : 2000)),
        ...(await cpuPerEvent(plain, gateway, isQuick ? 50 : 250)),
        ...(await decisions(isQuick ? 200 : 1000)),
        ...(await found(isQuick ? 400 : 2000)),
      ],
    };
  } finally {
    for (const child of children) child.kill();
    rmSync(folder, { recursive: true, force: true });
  }
}

/** One request after the other, of one event each, directly and through the gateway. */
async function addedTime(engine, plain, gateway, rounds) {
  const agent = new Agent({ keepAlive: true, maxSockets: 1000 });
  const measures = {
    direct: () => timed(() => stream(engine.url, 1, agent)),
    plain: () => timed(() => stream(plain.url, 1, agent)),
    through: () => timed(() => stream(gateway.url, 1, agent)),
  };
  await interleaved(100, measures);
  const { direct, plain: least, through } = await interleaved(rounds, measures);
  agent.destroy();
  const ms = (seconds) => seconds.map((each) => each * 1e3);
  const added = through.map((each, round) => (each - direct[round]) * 1e3);
  return [
    figure("added to a first byte", "ms", added, { floor: { on: "value", most: 3 } }),
    figure("a request of one event", "ms", ms(through), { beside: ms(least), of: "a plain proxy" }),
    describe({ name: "added to a first byte, p99", unit: "ms", value: quantile(added, 0.99) }),
  ];
}

/** CPU of the gateway's process for `streams` at once, of 50 events a second each. */
async function cpuPerEvent(plain, gateway, streams) {
  const events = 100;
  const agent = new Agent({ keepAlive: true, maxSockets: streams });
  const measure = async ({ url, pid }) => {
    const before = cpuTicks(pid);
    await Promise.all(Array.from({ length: streams }, () => stream(url, events, agent)));
    const seconds = (cpuTicks(pid) - before) / TICKS_PER_SECOND;
    return (seconds / (streams * events)) * 1e6;
  };
  const measures = { plain: () => measure(plain), through: () => measure(gateway) };
  await interleaved(1, measures);
  const { plain: least, through } = await interleaved(3, measures);
  agent.destroy();
  const floor = { on: "value", most: 25 };
  const beside = { beside: least, of: "a plain proxy" };
  return [figure("CPU per event passed", "us", through, { ...beside, floor })];
}

function cpuTicks(pid) {
  const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return Number(fields[11]) + Number(fields[12]);
}

function stream(url, events, agent) {
  const body = JSON.stringify({ model: "m", prompt: "p", stream: true, max_tokens: events });
  return new Promise((resolve, reject) => {
    const headers = { "content-type": "application/json" };
    const asked = request(`${url}/v1/completions`, { method: "POST", agent, headers }, (answer) => {
      answer.resume().on("end", resolve).on("error", reject);
    });
    asked.on("error", reject).end(body);
  });
}

/** Four engines with caches of their own, which requests go through one after the other. */
function fleetOf(preset, engines = 4) {
  const made = Array.from(
    { length: engines },
    (_none, at) => new Engine(`127.0.0.1:${at + 1}`, 64, at),
  );
  for (const engine of made) engine.setUp([{ id: "m" }]);
  const index = new BlockIndex(engines);
  const fleet = { engines: made, generation: 1 };
  const router = new Router({
    preset,
    fleet,
    index,
    tokenizer: new Tokenizer(1000),
    ttftMs: null,
    prefillTokens: 1e9,
  });
  for (let at = 0; at < engines; at += 1) index.trust(at, true);
  return { made, index, router };
}

const asked = (tokens) => ({
  id: "",
  path: "/v1/completions",
  body: { model: "m", prompt: tokens },
  model: "m",
  session: null,
});

/** A prompt of 100,000 tokens that all of four engines hold. */
async function decisions(rounds) {
  const { made, index, router } = fleetOf("earliest-token");
  const tokens = Array.from({ length: 100_000 }, (_none, at) => (at * 7919 + 13) % 152_064);
  for (let at = 0; at < made.length; at += 1) new Cache(index, at, 1e9).take(tokens);
  const seconds = [];
  for (let round = 0; round < rounds; round += 1) {
    seconds.push(
      await timed(async () => {
        const { order } = await router.choose(asked(tokens));
        order(made);
      }),
    );
  }
  const ms = seconds.slice(rounds / 10).map((each) => each * 1e3);
  return [
    figure("decision, 100,000 tokens, 4 engines", "ms", ms),
    describe({
      name: "decision, 100,000 tokens, 4 engines, p99",
      unit: "ms",
      value: quantile(ms, 0.99),
      floor: { on: "value", most: 5 },
    }),
  ];
}

/** The cache of one engine: least recently used blocks go first, and the index is told as its events would. */
class Cache {
  #held = new Map();

  constructor(index, at, blocksMax) {
    Object.assign(this, { index, at, blocksMax });
  }

  /** Tokens that were held. */
  take(tokens) {
    let hits = 0;
    let parent = null;
    let isHit = true;
    for (let from = 0; from + BLOCK <= tokens.length; from += BLOCK) {
      const own = tokens.slice(from, from + BLOCK);
      const text = `${parent ?? ""}:${own.join()}`;
      const known = this.#held.get(text);
      isHit &&= known !== undefined;
      if (isHit) hits += BLOCK;
      const hash = known ?? BigInt.asUintN(64, BigInt(Cache.next++));
      this.#held.delete(text);
      this.#held.set(text, hash);
      if (known === undefined) {
        const blocks = [{ hash, tokens: own, extra: [] }];
        this.index.apply(this.at, {
          kind: "stored",
          tier: "gpu",
          parent,
          blockSize: BLOCK,
          blocks,
          group: 0,
        });
      }
      parent = hash;
    }
    for (const [text, hash] of this.#held) {
      if (this.#held.size <= this.blocksMax) break;
      this.#held.delete(text);
      this.index.apply(this.at, { kind: "removed", tier: "gpu", hashes: [hash], group: 0 });
    }
    return hits;
  }

  static next = 1;
}

const GROUPS = 40;
const SHARED = 1408;
const OWN = 592;
/** Requests that are answered at a time. */
const OPEN = 8;
const PRESETS = ["round-robin", "least-load", "prefix-weighted", "earliest-token"];

/**
 * Prompts of 2,000 tokens, 70 % of each shared by one group of 40; an engine's cache holds a third of the groups. `computing`
 * prompts of those in flight have no first token yet: 2 for four engines is a fleet with room, 8 one without.
 */
async function found(requests) {
  const figures = [];
  for (const computing of [2, 8]) {
    for (const preset of PRESETS) figures.push(await foundBy(preset, requests, computing));
  }
  return figures;
}

async function foundBy(preset, requests, computing) {
  const { made, index, router } = fleetOf(preset);
  const blocksMax = ((GROUPS / 3) * (SHARED + OWN)) / BLOCK;
  const caches = made.map((_engine, at) => new Cache(index, at, blocksMax));
  const open = [];
  const load = made.map(() => 0);
  let hits = 0;
  let state = 1;
  const die = (sides) => {
    state = (state * 48_271) % 2_147_483_647;
    return state % sides;
  };
  for (let n = 0; n < requests; n += 1) {
    const group = die(GROUPS);
    const tokens = Array.from({ length: SHARED + OWN }, (_none, at) =>
      at < SHARED ? group * 10_000 + at : 1_000_000 + n * 1000 + at,
    );
    const { order, send } = await router.choose(asked(tokens));
    const [engine] = order(made);
    const at = made.indexOf(engine);
    const sent = send(engine);
    engine.inFlight += 1;
    load[at] += 1;
    open.push({ engine, sent });
    open.at(-1 - computing)?.sent.begun(false);
    if (open.length > OPEN) open.shift().engine.inFlight -= 1;
    hits += Math.min(SHARED, caches[at].take(tokens)) / SHARED;
  }
  const wanted = preset === "prefix-weighted" || preset === "earliest-token";
  return describe({
    name: `shared part found, ${preset}, ${computing} computing`,
    unit: "share",
    value: hits / requests,
    ...(wanted ? { floor: { on: "value", least: 0.75 } } : {}),
    note: `busiest engine ${(Math.max(...load) / (requests / made.length)).toFixed(2)} of the mean`,
  });
}
