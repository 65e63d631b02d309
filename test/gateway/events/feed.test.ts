// Owns the proof that the index never claims what an engine does not hold, whatever gets lost, over real ZeroMQ.
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { connect, createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { describe, expect, onTestFinished, test } from "vitest";
import { splitAddress } from "../../../src/base/hosts.ts";
import {
  GATEWAY_EVENTS_KEEPALIVE_MS,
  GATEWAY_EVENTS_RETRY_MS,
} from "../../../src/base/limits/gateway.ts";
import { sleep } from "../../../src/base/time.ts";
import { EventFeed } from "../../../src/gateway/events/feed.ts";
import type { Mark } from "../../../src/gateway/events/feed.ts";
import { BlockIndex } from "../../../src/gateway/index/index-of-blocks.ts";
import { SILENT, until } from "../../support/gateways.ts";
import { believed as believedBy } from "../../support/kv-batches.ts";
import { SimPublisher } from "../../support/sim-publisher.ts";
import type { PublisherOptions } from "../../support/sim-publisher.ts";
import { relayTo } from "../../support/tcp-relay.ts";
import type { Relay } from "../../support/tcp-relay.ts";

interface Followed {
  publisher: SimPublisher;
  feed: EventFeed;
  index: BlockIndex;
  /** Blocks of the prompt that the index believes to be there. */
  believed(tokens: readonly number[], salt?: string): number;
  /** How often the index was emptied. */
  drops(): number;
}

async function followed(
  options: PublisherOptions = {},
  hasReplay = true,
  logger = SILENT,
  replays: string | null = null,
  resume: Mark | null = null,
): Promise<Followed> {
  const publisher = await new SimPublisher(options).start();
  const index = new BlockIndex(1);
  let drops = 0;
  const feed = new EventFeed({
    events: publisher.events,
    replays: replays ?? (hasReplay ? publisher.replays : null),
    resume,
    logger,
    sink: {
      apply: (payload) => index.apply(0, payload),
      clear() {
        drops += 1;
        index.clear(0);
      },
      trust: (isTrusted) => index.trust(0, isTrusted),
    },
  });
  onTestFinished(() => {
    feed.close();
    publisher.stop();
  });
  const believed = (tokens: readonly number[], salt: string | null = null): number =>
    believedBy(index, [0], tokens, publisher.blockSize, { salt })[0]!;
  return { publisher, feed, index, believed, drops: () => drops };
}

const prompt = (seed: number, blocks = 3): number[] =>
  Array.from({ length: blocks * 4 }, (_none, at) => seed * 1000 + at);

describe.each([
  { isPositional: false, hasTopic: true },
  { isPositional: true, hasTopic: false },
])("events as %o", (options) => {
  test("what was stored before the gateway came, and since, is known; what was removed is not", async () => {
    const { publisher, feed, believed } = await followed(options);
    await publisher.take(prompt(1));
    feed.start();
    await until(() => believed(prompt(1)) === 3);
    // A subscription takes effect a little after it was made: what is missed by then is replayed at the next batch.
    await publisher.take(prompt(2));
    await publisher.take(prompt(3), 1);
    await until(async () => {
      await publisher.publish([]);
      return believed(prompt(3)) === 3;
    });
    expect(believed(prompt(2))).toBe(3);
    expect(believed(prompt(1))).toBe(2);
    expect(feed.state).toBe("live");
  });
});

test.each([
  { replaysAtOnce: 40, isSilent: false },
  { replaysAtOnce: 40, isSilent: true },
])("a replay whose socket drops batches (%o) goes on until it is whole", async (options) => {
  const { publisher, feed, believed, drops } = await followed(options);
  const BATCHES = 200;
  for (let seed = 0; seed < BATCHES; seed += 1) await publisher.take(prompt(seed));
  feed.start();
  await until(() => feed.state === "live");
  for (let seed = 0; seed < BATCHES; seed += 1)
    expect(believed(prompt(seed)), String(seed)).toBe(3);
  expect(publisher.replayed).toBeGreaterThan(1);
  // The index was emptied once, at the beginning.
  expect(drops()).toBe(1);
});

test("a replay behind the engine's oldest batch knows what is left of them", async () => {
  const { publisher, feed, believed } = await followed({ kept: 50, replaysAtOnce: 20 });
  for (let seed = 0; seed < 120; seed += 1) await publisher.take(prompt(seed));
  feed.start();
  await until(() => feed.state === "live");
  expect([69, 70, 119].map((seed) => believed(prompt(seed)))).toEqual([0, 3, 3]);
});

test("a salt tells prompts apart", async () => {
  const { publisher, feed, believed } = await followed();
  await publisher.take(prompt(1), 0, false, "tenant");
  feed.start();
  await until(() => believed(prompt(1), "tenant") === 3);
  expect(believed(prompt(1))).toBe(0);
});

test("a lost batch is replayed, without forgetting the rest", async () => {
  const { publisher, feed, believed } = await followed();
  await publisher.take(prompt(1));
  feed.start();
  await until(() => believed(prompt(1)) === 3);
  await publisher.take(prompt(2), 1, true);
  await until(async () => {
    await publisher.take(prompt(3, 1));
    await publisher.publish([]);
    return believed(prompt(3, 1)) === 1;
  });
  expect([believed(prompt(1)), believed(prompt(2))]).toEqual([2, 3]);
  expect(feed.gaps).toBeGreaterThan(0);
});

test("what the engine does not replay any more empties the index", async () => {
  const { publisher, feed, believed } = await followed({ kept: 1 });
  await publisher.take(prompt(1));
  feed.start();
  await until(() => believed(prompt(1)) === 3);
  await publisher.take(prompt(2), 2, true);
  await publisher.publish([], true);
  await until(async () => {
    await publisher.publish([]);
    return feed.gaps > 0 && feed.state === "live";
  });
  expect(believed(prompt(1))).toBe(0);
});

/** Passes what comes from there in few large pieces, as ZeroMQ does when much is to be sent. */
async function gathering(address: () => string): Promise<string> {
  const server = createServer((socket) => {
    const to = connect(splitAddress(address()));
    const held: Buffer[] = [];
    let timer: NodeJS.Timeout | undefined;
    const flush = (): void => void socket.write(Buffer.concat(held.splice(0)));
    to.on("data", (chunk) => {
      held.push(chunk);
      clearTimeout(timer);
      timer = setTimeout(flush, 50);
    });
    socket.on("data", (chunk) => void to.write(chunk)).on("close", () => to.destroy());
    for (const each of [socket, to]) each.on("error", () => {});
  }).listen(0, "127.0.0.1");
  onTestFinished(() => void server.close());
  await once(server, "listening");
  return `127.0.0.1:${(server.address() as AddressInfo).port}`;
}

test("where the mark is another process's, the rest of that replay is not taken for the whole", async () => {
  let from = "";
  const replays = await gathering(() => from);
  const mark = { sequence: 1, digest: "another process's" };
  const { publisher, feed, believed } = await followed({}, true, SILENT, replays, mark);
  from = publisher.replays;
  for (let n = 1; n <= 20; n += 1) await publisher.take(prompt(n));
  feed.start();
  await until(() => feed.state === "live");
  expect([believed(prompt(1)), believed(prompt(20))]).toEqual([3, 3]);
});

test("without a replay a gap empties the index, and it fills again", async () => {
  const { publisher, feed, believed } = await followed({}, false);
  feed.start();
  await until(async () => {
    await publisher.clear();
    await publisher.take(prompt(1));
    return believed(prompt(1)) === 3;
  });
  await publisher.take(prompt(2), 3, true);
  await publisher.take(prompt(3));
  await until(() => believed(prompt(3)) === 3);
  expect(believed(prompt(1))).toBe(0);
});

test("an engine that starts anew holds nothing of before, and is followed again", async () => {
  const { publisher, feed, believed } = await followed();
  await publisher.take(prompt(1));
  feed.start();
  await until(() => believed(prompt(1)) === 3);
  publisher.stop();
  await until(() => feed.state === "away");
  expect(believed(prompt(1))).toBe(0);
  await publisher.start();
  await publisher.take(prompt(2));
  await until(() => believed(prompt(2)) === 3);
  expect(believed(prompt(1))).toBe(0);
});

/** The system's timer of the connection to a port, as Linux tells: its kind, and hundredths of a second until it ends. */
function timerOf(address: string): [kind: string, hundredths: number] {
  const port = splitAddress(address).port.toString(16).toUpperCase().padStart(4, "0");
  const rows = readFileSync("/proc/net/tcp", "latin1").split("\n");
  const fields = rows.map((row) => row.trim().split(/\s+/));
  const row = fields.find(([, , to, state]) => to?.endsWith(`:${port}`) && state === "01");
  const [kind = "", hundredths = ""] = row?.[5]?.split(":") ?? [];
  return [kind, Number.parseInt(hundredths, 16)];
}

test("a connection that brings nothing is probed soon, because a machine without power says nothing of its end", async () => {
  const { publisher, feed } = await followed();
  feed.start();
  await until(() => feed.state === "live" && timerOf(publisher.events)[0] === "02");
  expect(timerOf(publisher.events)[1]).toBeLessThanOrEqual(GATEWAY_EVENTS_KEEPALIVE_MS / 10);
});

async function isListening(address: string): Promise<boolean> {
  const { host, port } = splitAddress(address);
  const socket = connect(port, host);
  // `once` rejects with what the socket fails with.
  const isOpen = await once(socket, "connect").then(
    () => true,
    () => false,
  );
  socket.destroy();
  return isOpen;
}

function listening(): { said: string[]; logger: typeof SILENT } {
  const said: string[] = [];
  const heard = (_what: object, words: string): void => void said.push(words);
  return { said, logger: { ...SILENT, warn: heard, info: heard } as unknown as typeof SILENT };
}

const NO_REPLAY = "an engine does not replay events: what it held before is not known";

test("an address at which nothing is replayed is told of", async () => {
  const { said, logger } = listening();
  const { feed } = await followed({}, true, logger, "127.0.0.1:1");
  feed.start();
  await until(() => feed.state === "live");
  expect(said).toEqual([NO_REPLAY]);
});

test("a replay that fails again and again is told of once, and again after one that ended well", async () => {
  const { said, logger } = listening();
  let isWrong = true;
  let relay: Relay | null = null;
  const server = createServer((socket) => {
    if (!isWrong) relay?.adopt(socket);
    // Of another protocol.
    else socket.on("error", () => {}).write(Buffer.alloc(64));
  }).listen(0, "127.0.0.1");
  onTestFinished(() => void server.close());
  await once(server, "listening");
  const replays = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  const { publisher, feed } = await followed({}, true, logger, replays);
  relay = relayTo({ address: publisher.replays });
  const gap = async (): Promise<void> => {
    const before = feed.gaps;
    await until(async () => {
      await publisher.publish([], true);
      await publisher.publish([]);
      return feed.gaps > before && feed.state === "live";
    });
  };
  feed.start();
  await until(() => feed.state === "live");
  await gap();
  expect(said).toEqual([NO_REPLAY]);
  isWrong = false;
  await gap();
  isWrong = true;
  await gap();
  await gap();
  expect(said).toEqual([NO_REPLAY, NO_REPLAY]);
});

test("an engine whose events do not come is told of once, and so is their coming", async () => {
  const { said, logger } = listening();
  const { publisher, feed } = await followed({}, true, logger);
  publisher.stop();
  // ZeroMQ closes behind its caller's back: until then somebody who connects is welcomed, and lost.
  await until(async () => !(await isListening(publisher.events)));
  feed.start();
  await until(() => said.length > 0);
  // Tried again, and refused again, meanwhile.
  await sleep(3 * GATEWAY_EVENTS_RETRY_MS);
  await publisher.start();
  await until(() => feed.state === "live");
  expect(said).toEqual([
    "events of an engine do not come: is it started with --kv-events-config?",
    "events of an engine arrive again",
  ]);
  publisher.stop();
  await until(() => said.length === 3);
  expect(said[2]).toBe("events of an engine are lost");
});
