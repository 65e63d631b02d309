// Owns the figures of the gateway: added time per first byte and event, time of a decision, share of prompts found.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { Agent, request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, figure, interleaved, quantile, timed } from "./lib/figures.js";
import { bytesPerBlock, eventRate, stored, warmStart } from "./lib/gateway-index.js";
import { TIERKV } from "./lib/paths.js";
import { asked, conversations, gatewayOf, onePrefix, simulate, strangers } from "./sim/fleet.js";

const SSE_ENGINE = fileURLToPath(new URL("./lib/sse-engine.js", import.meta.url));
const PLAIN_PROXY = fileURLToPath(new URL("./lib/plain-proxy.js", import.meta.url));
const TICKS_PER_SECOND = 100;

export const titleOf = (part) =>
  part === "virtual"
    ? "The gateway before simulated engines, in virtual time: presets, predictions, back-pressure, several gateways"
    : "The gateway: added time, CPU, decisions, a warm start";

export async function run({ isQuick, part }) {
  if (part === "virtual") return { figures: await simulated(isQuick ? 400 : 2000) };
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
        ...(await perCore(plain, gateway, isQuick ? 500 : 5000)),
        ...(await goneClients(engine, gateway, isQuick ? 20 : 200)),
        ...(await decisions(isQuick ? 200 : 1000)),
        ...eventRate(isQuick ? 100_000 : 1_000_000),
        await bytesPerBlock(isQuick ? 100_000 : 2_000_000),
        ...(await warmStart(folder, isQuick ? 100_000 : 1_000_000)),
      ],
    };
  } finally {
    for (const child of children) child.kill();
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Sends requests of one event, one after the other, directly and through the gateway. */
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

/** Measures CPU of the gateway's process for `streams` streams at once, of 50 events a second each. */
async function cpuPerEvent(plain, gateway, streams) {
  const events = 100;
  const measure = async ({ url, pid }) => {
    // New for each measure, because a connection that was idle for 5 s may close as it is used.
    const agent = new Agent({ keepAlive: true, maxSockets: streams });
    const before = cpuTicks(pid);
    await Promise.all(Array.from({ length: streams }, () => stream(url, events, agent)));
    const seconds = (cpuTicks(pid) - before) / TICKS_PER_SECOND;
    agent.destroy();
    return (seconds / (streams * events)) * 1e6;
  };
  const measures = { plain: () => measure(plain), through: () => measure(gateway) };
  await interleaved(1, measures);
  const { plain: least, through } = await interleaved(3, measures);
  const floor = { on: "value", most: 25 };
  const beside = { beside: least, of: "a plain proxy" };
  return [figure("CPU per event passed", "us", through, { ...beside, floor })];
}

/** Returns requests of one event, fifty at a time, per CPU second. */
async function perCore(plain, gateway, requests) {
  const measure = async ({ url, pid }) => {
    const agent = new Agent({ keepAlive: true, maxSockets: 50 });
    const before = cpuTicks(pid);
    let left = requests;
    const client = async () => {
      while ((left -= 1) >= 0) await stream(url, 1, agent);
    };
    await Promise.all(Array.from({ length: 50 }, client));
    agent.destroy();
    return requests / ((cpuTicks(pid) - before) / TICKS_PER_SECOND);
  };
  const measures = { plain: () => measure(plain), through: () => measure(gateway) };
  await interleaved(1, measures);
  const { plain: least, through } = await interleaved(3, measures);
  const beside = { beside: least, of: "a plain proxy" };
  return [figure("requests a second on one core", "1/s", through, beside)];
}

/** Measures the time from a client leaving in mid-stream until its engine knows. */
async function goneClients(engine, gateway, rounds) {
  const ms = [];
  for (let round = 0; round < rounds; round += 1) {
    const gone = await leave(gateway.url);
    const { ms: at } = await (await fetch(`${engine.url}/aborted`)).json();
    ms.push(at - gone);
  }
  const floor = { on: "value", most: 100 };
  return [figure("a client left: until its engine knows", "ms", ms, { floor })];
}

/** Returns when the client left, by the clock that both processes share. */
function leave(url) {
  const body = JSON.stringify({ model: "m", prompt: "p", stream: true, max_tokens: 1e6 });
  const headers = { "content-type": "application/json" };
  return new Promise((resolve, reject) => {
    const asking = { method: "POST", agent: false, headers };
    const sent = request(`${url}/v1/completions`, asking, (answer) => {
      answer
        .on("error", () => {})
        .once("data", () => {
          resolve(performance.timeOrigin + performance.now());
          sent.destroy();
        });
    });
    sent.on("error", reject).end(body);
  });
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
    const sent = request(`${url}/v1/completions`, { method: "POST", agent, headers }, (answer) => {
      answer.resume().on("end", resolve).on("error", reject);
    });
    sent.on("error", reject).end(body);
  });
}

/** Times the decision for a prompt of 100,000 tokens that all four engines hold. */
async function decisions(rounds) {
  const { made, index, router } = gatewayOf("earliest-token", 4);
  const tokens = Array.from({ length: 100_000 }, (_none, at) => (at * 7919 + 13) % 152_064);
  for (let at = 0; at < made.length; at += 1) index.apply(at, stored(tokens));
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

const PRESETS = ["round-robin", "least-load", "prefix-weighted", "earliest-token"];
const SEEDS = [1, 2, 3];
/** More seeds, because the compared values differ by little. */
const MANY_SEEDS = [1, 2, 3, 4, 5, 6];
/** Tokens that an engine holds: a third of those in use, and all. */
const [TIGHT, ROOMY] = [40_000, 400_000];

/** Runs in virtual time, so that figures are the same on every machine. */
async function simulated(requests) {
  return [
    ...(await presets(requests)),
    ...(await alike(requests)),
    ...(await predictions(requests)),
    ...(await longPrompts(requests)),
    ...(await overload(requests)),
    ...(await sideBySide(requests)),
  ];
}

/** Simulates requests of several seeds, one after the other. */
async function runs(make, options, seeds = SEEDS) {
  const all = [];
  for (const seed of seeds) all.push(...(await simulate(make(), { ...options, seed })));
  return all;
}

const timesOf = (results) => results.flatMap(({ ttftMs }) => (ttftMs === null ? [] : [ttftMs]));
const share = (results, of) => results.filter(of).length / results.length;
const hitsOf = (results) => {
  const sum = (name) => results.reduce((total, one) => total + one[name], 0);
  return sum("held") / sum("reusable");
};

const ms = (name, value, floor) =>
  describe({ name, unit: "ms", value, ...(floor === undefined ? {} : { floor }) });

async function presets(requests) {
  const figures = [];
  const points = [
    ["a quarter of capacity, tight caches", 25, TIGHT],
    ["near capacity, tight caches", 45, TIGHT],
    ["above it without reuse, roomy caches", 60, ROOMY],
  ];
  for (const [point, perSecond, cacheTokens] of points) {
    const p50 = {};
    const p99 = {};
    for (const preset of PRESETS) {
      const all = await runs(() => conversations(requests, perSecond), { preset, cacheTokens });
      const times = timesOf(all);
      [p50[preset], p99[preset]] = [quantile(times, 0.5), quantile(times, 0.99)];
      figures.push(
        describe({ name: `${point}: reused, ${preset}`, unit: "share", value: hitsOf(all) }),
        ms(`${point}: first token p50, ${preset}`, p50[preset]),
        ms(`${point}: first token p99, ${preset}`, p99[preset]),
      );
    }
    const ratioOf = (of) => of["least-load"] / of["earliest-token"];
    const line = (what, of, least) =>
      describe({
        name: `${point}: least-load's ${what} by earliest-token's`,
        unit: "",
        value: ratioOf(of),
        floor: { on: "value", least },
      });
    // Half the floor for roomy caches, because there the least loaded engine also holds most prompts.
    figures.push(line("p50", p50, cacheTokens === TIGHT ? 2 : 1), line("p99", p99, 1));
  }
  return figures;
}

/** Every engine soon holds the one prefix, so staying with the first holder would only build a queue there. */
async function alike(requests) {
  const figures = [];
  const times = {};
  for (const preset of PRESETS) {
    const make = () => onePrefix(requests, 100);
    times[preset] = timesOf(await runs(make, { preset, cacheTokens: ROOMY }));
    for (const at of [0.5, 0.99]) {
      const name = `one prefix for all, near capacity: first token p${at * 100}, ${preset}`;
      figures.push(ms(name, quantile(times[preset], at)));
    }
  }
  for (const at of [0.5, 0.99]) {
    const best = Math.min(...PRESETS.map((preset) => quantile(times[preset], at)));
    figures.push(
      describe({
        name: `one prefix for all: the best p${at * 100} by earliest-token's`,
        unit: "",
        value: best / quantile(times["earliest-token"], at),
        floor: { on: "value", least: 0.95 },
      }),
    );
  }
  return figures;
}

/** Predicts prompts of 1,000 to 12,000 tokens, at half of the engines' capacity. */
async function predictions(requests) {
  const tokens = (chance) => 1000 + Math.floor(chance() * 11_000);
  const kinds = [{ perSecond: 9, tokens }];
  const options = { preset: "earliest-token", cacheTokens: ROOMY };
  const all = await runs(() => strangers(requests, kinds), options);
  const errors = all.flatMap(({ ttftMs, predictedMs }) =>
    ttftMs === null ? [] : [Math.abs(predictedMs - ttftMs) / ttftMs],
  );
  const line = (at, most) =>
    describe({
      name: `first token predicted, 1k to 12k tokens: error p${at * 100}`,
      unit: "share",
      value: quantile(errors, at),
      floor: { on: "value", most },
    });
  return [line(0.5, 0.15), line(0.9, 0.35)];
}

/** Sends prompts of 200 tokens, without and with one prompt of 12,000 tokens a second among them. */
async function longPrompts(requests) {
  const short = { kind: "short", perSecond: 40, tokens: () => 200 };
  const long = { kind: "long", perSecond: 1, tokens: () => 12_000 };
  const figures = [];
  for (const preset of ["least-load", "earliest-token"]) {
    const p99 = [];
    for (const kinds of [[short], [short, long]]) {
      const all = await runs(() => strangers(requests, kinds), { preset, cacheTokens: ROOMY });
      p99.push(quantile(timesOf(all.filter(({ kind }) => kind === "short")), 0.99));
    }
    const floor = preset === "earliest-token" ? { floor: { on: "value", most: 1.5 } } : {};
    const name = `p99 of short prompts beside a long one a second, by that without, ${preset}`;
    figures.push(describe({ name, unit: "", value: p99[1] / p99[0], ...floor }));
  }
  return figures;
}

/** Sends twice the engines' capacity, and a tenant that asks for a tenth beside it. */
async function overload(requests) {
  const ttftMs = 1000;
  const options = { preset: "earliest-token", cacheTokens: ROOMY, ttftMs };
  const figures = [];
  for (const isKeyed of [false, true]) {
    const kindOf = (kind, perSecond) => ({
      kind,
      key: isKeyed ? kind : "",
      perSecond,
      tokens: () => 2000,
    });
    const kinds = [kindOf("flood", 104), kindOf("small", 5)];
    const all = await runs(() => strangers(requests, kinds), options);
    const how = isKeyed ? "with fairness keys" : "without";
    const small = all.filter(({ kind }) => kind === "small");
    figures.push(
      ms(
        `twice the capacity, 1 s at most, ${how}: first token p99 of those taken`,
        quantile(timesOf(all), 0.99),
        {
          on: "value",
          most: 1.1 * ttftMs,
        },
      ),
      describe({
        name: `the same: shed`,
        unit: "share",
        value: share(all, (one) => one.ttftMs === null),
      }),
      describe({
        name: `the same: taken of a tenant that asks for a tenth`,
        unit: "share",
        value: share(small, (one) => one.ttftMs !== null),
      }),
    );
  }
  return figures;
}

/** Runs gateways that receive the same events and share nothing else. */
async function sideBySide(requests) {
  const figures = [];
  for (const perSecond of [25, 45]) {
    for (const gateways of [1, 3]) {
      const options = { preset: "earliest-token", cacheTokens: TIGHT, gateways };
      const make = () => conversations(requests, perSecond);
      const times = timesOf(await runs(make, options, MANY_SEEDS));
      for (const at of [0.5, 0.99]) {
        const name = `${gateways} gateways, ${perSecond} requests a second: first token p${at * 100}`;
        figures.push(ms(name, quantile(times, at)));
      }
    }
  }
  return figures;
}
