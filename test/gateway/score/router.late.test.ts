// Owns the proof that a gateway which starts late finds what engines hold, and that an engine which leaves and returns is known.
import { createServer } from "node:net";
import { expect, onTestFinished, test, vi } from "vitest";
import { splitAddress } from "../../../src/base/hosts.ts";
import { GATEWAY_SPECULATION_MS } from "../../../src/base/limits/gateway.ts";
import type { Address } from "../../../src/config/config.ts";
import type { Neighbour } from "../../../src/gateway/engines/discovery.ts";
import { DEFAULT_SEED, rootOf } from "../../../src/gateway/hashes/forms.ts";
import { call, gatewayBefore, until } from "../../support/gateways.ts";
import type { Answer } from "../../support/gateways.ts";
import { SimEngine, tokensOf } from "../../support/sim-engine.ts";
import { SimPublisher } from "../../support/sim-publisher.ts";

const BASE = { algorithm: "sha256", root: rootOf("sha256", DEFAULT_SEED) } as const;
const ENGINES = 4;
const TALKS = 24;
/** Rounds of the first gateway, and those that are measured at the end. */
const ROUNDS = 3;
const MEASURED = 3;
/** Rounds of a late gateway before it is measured: those in which it learns the engines' hashes, and more. */
const LEARNING_MAX = 22;
const SETTLING = 8;
/** Seconds of the clock in which a late gateway has to come to the reuse of an old one. */
const GOAL_S = 60;
const SYSTEMS = ["one system prompt, ", "a second one, ", "the third, "];

interface Engine {
  engine: SimEngine;
  publisher: SimPublisher;
}

/** Tokens that engines had before they computed a prompt, and all tokens. */
interface Count {
  reused: number;
  all: number;
}

/** Engines without replays, as behind a window of replays that has passed. */
async function enginesOf(count: Count, kept = 0): Promise<Engine[]> {
  const made = Array.from({ length: ENGINES }, async (): Promise<Engine> => {
    const publisher = await new SimPublisher({ blockSize: 16, base: BASE, kept }).start();
    const engine = await new SimEngine().start();
    engine.onPrompt = async (tokens) => {
      count.reused += 16 * publisher.prefix(tokens);
      count.all += tokens.length;
      await publisher.take(tokens);
    };
    onTestFinished(async () => {
      publisher.stop();
      await engine.kill();
    });
    return { engine, publisher };
  });
  return Promise.all(made);
}

const addressOf = (text: string): Address => ({ ...splitAddress(text), text });
const figure = async (url: string, name: string): Promise<number[]> => {
  const { text } = await call(url, "/metrics");
  return [...text.matchAll(new RegExp(`^${name}\\{.*\\} (-?\\d+)$`, "gm"))].map(([, n]) =>
    Number(n),
  );
};

async function gatewayOf(
  engines: readonly Engine[],
): Promise<{ url: string; close(): Promise<void> }> {
  const scene = await gatewayBefore([], {
    preset: "prefix-weighted",
    engines: engines.map(({ engine }) => addressOf(engine.name)),
    events: engines.map(({ publisher }) => addressOf(publisher.events)),
    replays: engines.map(({ publisher }) => addressOf(publisher.replays)),
  });
  await until(async () => {
    for (const { publisher } of engines) await publisher.publish([]);
    const live = await figure(scene.url, "tierkv_gateway_events_live");
    return live.filter((one) => one === 1).length === engines.length;
  });
  return scene;
}

const ask = (url: string, prompt: string, headers: Record<string, string> = {}): Promise<Answer> =>
  call(url, "/v1/completions", {
    body: JSON.stringify({ model: "m", prompt, stream: true }),
    headers: { "content-type": "application/json", ...headers },
  });

/** Each conversation's next turn, all at once, behind the system prompt that it shares with others. */
async function round(url: string, turn: number, first = 0): Promise<void> {
  const answers = Array.from({ length: TALKS }, (_none, at) => {
    const talk = first + at;
    const said = Array.from({ length: turn + 1 }, (_all, n) =>
      `talk ${talk} turn ${n}. `.repeat(8),
    );
    return ask(url, SYSTEMS[talk % SYSTEMS.length]!.repeat(40) + said.join(""));
  });
  for (const { code } of await Promise.all(answers)) expect(code).toBe(200);
  // What was sent lately is no longer believed without events.
  vi.advanceTimersByTime(GATEWAY_SPECULATION_MS + 1);
}

/** Returns the share of tokens reused in the last rounds; `isLate`: a gateway that knows nothing takes over before them. */
async function reuse(isLate: boolean): Promise<{ share: number; seconds: number }> {
  const count: Count = { reused: 0, all: 0 };
  const engines = await enginesOf(count);
  let gateway = await gatewayOf(engines);
  // Every engine holds every system prompt, so that no prompt's beginning is stored again.
  for (const { publisher } of engines) {
    for (const system of SYSTEMS) await publisher.take(tokensOf(system.repeat(40)));
  }
  let turn = 0;
  for (; turn < ROUNDS; turn += 1) await round(gateway.url, turn);
  if (isLate) {
    await gateway.close();
    gateway = await gatewayOf(engines);
  }
  /** Whether the gateway makes the hashes of half of the engines: the others get no more requests until these are busy. */
  const isAgreed = async (): Promise<boolean> => {
    const agreed = await figure(gateway.url, "tierkv_gateway_hashes_agreed");
    return agreed.filter((one) => one === 1).length >= ENGINES / 2;
  };
  // New conversations, whose beginning only the earlier gateway had heard of.
  let first = TALKS;
  const begun = performance.now();
  let rounds = 0;
  do await round(gateway.url, turn, (first += TALKS));
  while (!(await isAgreed()) && (rounds += 1) < LEARNING_MAX);
  for (let n = 0; n < SETTLING; n += 1) await round(gateway.url, (turn += 1), first);
  const seconds = (performance.now() - begun) / 1000;
  Object.assign(count, { reused: 0, all: 0 });
  for (let n = 0; n < MEASURED; n += 1) await round(gateway.url, (turn += 1), first);
  await gateway.close();
  return { share: count.reused / count.all, seconds };
}

test("a gateway that starts late, without replays, comes to the reuse of one that heard all", async () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  onTestFinished(() => void vi.useRealTimers());
  const [old, late] = [await reuse(false), await reuse(true)];
  process.stdout.write(`reuse ${JSON.stringify({ old, late })}\n`);
  expect(old.share).toBeGreaterThan(0.7);
  expect(late.share).toBeGreaterThanOrEqual(0.95 * old.share);
  expect(late.seconds).toBeLessThanOrEqual(GOAL_S);
}, 240_000);

test("an engine that leaves a list and returns is known as before; another process at its address is not", async () => {
  const count: Count = { reused: 0, all: 0 };
  const [one] = await enginesOf(count, 100);
  const { engine, publisher } = one!;
  let listed: Neighbour[] = [];
  const look = (): Promise<Neighbour[]> => Promise.resolve(listed);
  const there: Neighbour = {
    address: engine.name,
    events: publisher.events,
    replays: publisher.replays,
  };
  listed = [there];
  const preset = "prefix-weighted" as const;
  const { url } = await gatewayBefore([], { preset }, [], [], undefined, look);
  const blocks = async (): Promise<number> =>
    (await figure(url, "tierkv_gateway_indexed_blocks"))[0] ?? -1;
  const isListed = async (count_: number): Promise<boolean> =>
    (await figure(url, "tierkv_gateway_engine_up")).length === count_;
  await publisher.take(Array.from({ length: 160 }, (_none, at) => at));
  await until(async () => (await blocks()) === 10);
  listed = [];
  await until(() => isListed(0));
  // What it stores meanwhile is heard, too.
  await publisher.take(Array.from({ length: 32 }, (_none, at) => 1000 + at));
  const replays = publisher.replayed;
  listed = [there];
  await until(async () => (await isListed(1)) && (await blocks()) === 12);
  expect(publisher.replayed).toBe(replays);
  // A connection that breaks is continued behind the last batch.
  publisher.stop();
  await publisher.start();
  await until(async () => (await blocks()) === 0);
}, 120_000);

test("each data-parallel rank is heard at its own port, and a prompt goes to the rank that holds it", async () => {
  const free = async (): Promise<SimPublisher> =>
    new SimPublisher({ blockSize: 16, base: BASE }).start();
  // Neighbouring ports, as vLLM numbers its ranks' publishers.
  const ranks = await neighbours(free);
  onTestFinished(() => {
    for (const rank of ranks) rank.stop();
  });
  const engine = await new SimEngine().start();
  onTestFinished(() => engine.kill());
  engine.states = { "/kv_event_sources": { 0: {}, 1: {} } };
  const { url } = await gatewayBefore([], {
    preset: "prefix-weighted",
    engines: [addressOf(engine.name)],
    events: [addressOf(ranks[0]!.events)],
    replays: [addressOf(ranks[0]!.replays)],
  });
  const texts = ["rank zero holds this. ", "rank one holds that. "].map((text) => text.repeat(40));
  for (const [rank, text] of texts.entries()) await ranks[rank]!.take([...Buffer.from(text)]);
  const blocks = texts.reduce((sum, { length }) => sum + Math.floor(length / 16), 0);
  await until(async () => {
    for (const rank of ranks) await rank.publish([]);
    return (await figure(url, "tierkv_gateway_indexed_blocks"))[0] === blocks;
  });
  for (const rank of [0, 1, 1, 0]) {
    const answer = await ask(url, `${texts[rank]!}and more`);
    const [hit = 0] = String(answer.headers["x-tierkv-hit-tokens"]).split("/").map(Number);
    expect(hit).toBeGreaterThan(700);
    expect(engine.asked.at(-1)!.headers["x-data-parallel-rank"]).toBe(String(rank));
  }
  // Engines take the first of two headers with one name.
  await ask(url, `${texts[1]!}and more`, { "x-data-parallel-rank": "0" });
  expect(engine.asked.at(-1)!.headers["x-data-parallel-rank"]).toBe("1, 0");
  const isLive = async (): Promise<number | undefined> =>
    (await figure(url, "tierkv_gateway_events_live"))[0];
  expect(await isLive()).toBe(1);
  ranks[1]!.stop();
  await until(async () => (await isLive()) === 0);
}, 120_000);

/** Two publishers, of which the second has the next ports. */
async function neighbours(make: () => Promise<SimPublisher>): Promise<SimPublisher[]> {
  for (;;) {
    const first = await make();
    const [events, replays] = [first.events, first.replays].map((address) =>
      String(splitAddress(address).port + 1),
    );
    if (await areFree([Number(events), Number(replays)])) {
      const ports = [events!, replays!] as const;
      return [first, await new SimPublisher({ blockSize: 16, base: BASE, ports }).start()];
    }
    first.stop();
  }
}

async function areFree(ports: readonly number[]): Promise<boolean> {
  for (const port of ports) {
    const server = createServer();
    const isFree = await new Promise<boolean>((resolve) => {
      server.once("error", () => resolve(false));
      server.listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
    });
    if (!isFree) return false;
  }
  return new Set(ports).size === ports.length;
}
