// Owns the proof that nothing is believed which engines do not hold, however their events come: lost, twice, in another order, of a new process.
import { setImmediate } from "node:timers/promises";
import { expect, onTestFinished, test } from "vitest";
import { EventFeed } from "../../../src/gateway/events/feed.ts";
import { BlockIndex } from "../../../src/gateway/index/index-of-blocks.ts";
import { Dice, testSeed } from "../../faults/lib/random.ts";
import { SILENT, until } from "../../support/gateways.ts";
import { believed as believedBy } from "../../support/kv-batches.ts";
import { SimPublisher } from "../../support/sim-publisher.ts";

const IS_LONG = process.env["TIERKV_TEST_LONG"] === "on";
const EVENTS = IS_LONG ? 1_000_000 : 6000;
const RESTARTS = IS_LONG ? 20 : 1;
const ENGINES = 2;
const LONG_MS = 3_600_000;
const BLOCK = 4;
/** Batches between two looks at what is believed. */
const ROUND = IS_LONG ? 500 : 100;

/** Of so many batches one is lost, one comes twice and one comes late. */
const OF = IS_LONG ? 100 : 20;
const ARRIVALS = ["never", "twice", "late"] as const;

interface Engine {
  publisher: SimPublisher;
  feed: EventFeed;
}

async function followed(index: BlockIndex, engine: number, dice: Dice): Promise<Engine> {
  // Many gaps are longer than what it replays.
  const publisher = await new SimPublisher({ kept: 8, blockSize: BLOCK }).start();
  publisher.arrives = () => ARRIVALS[dice.below(OF)] ?? "once";
  const feed = new EventFeed({
    events: publisher.events,
    replays: publisher.replays,
    logger: SILENT,
    sink: {
      apply: (payload) => index.apply(engine, payload),
      clear: () => index.clear(engine),
      trust: (isTrusted) => index.trust(engine, isTrusted),
    },
  });
  feed.start();
  onTestFinished(() => {
    feed.close();
    publisher.stop();
  });
  return { publisher, feed };
}

const block = (seed: number): number[] =>
  Array.from({ length: BLOCK }, (_none, at) => seed * 10 + at);

test(
  `F47 ${EVENTS} events, lost, repeated, reordered, and ${RESTARTS} restarts of engines: no false positive after any resync`,
  async () => {
    const dice = new Dice(testSeed());
    const index = new BlockIndex(ENGINES);
    const engines: Engine[] = [];
    for (let at = 0; at < ENGINES; at += 1) engines.push(await followed(index, at, dice));
    // Beginnings that many share, and ends of their own.
    const prompts = Array.from({ length: 40 }, (_none, at) =>
      [1000 + (at % 3), 2000 + (at % 7), 3000 + at, 4000 + at]
        .flatMap(block)
        .slice(0, 8 + 4 * (at % 3)),
    );
    const all = Array.from({ length: ENGINES }, (_none, at) => at);
    const believed = (tokens: readonly number[]): number[] => believedBy(index, all, tokens, BLOCK);
    const published = (): number =>
      engines.reduce((sum, { publisher }) => sum + publisher.published, 0);
    let restarts = 0;
    let known = 0;
    let marks = 0;
    for (let round = 0; published() < EVENTS || restarts < RESTARTS; round += 1) {
      const [at] = [dice.below(ENGINES)];
      const { publisher, feed } = engines[at]!;
      if (published() >= (EVENTS / (RESTARTS + 1)) * (restarts + 1)) {
        restarts += 1;
        publisher.stop();
        await publisher.start();
      }
      for (let n = 0; n < ROUND; n += 1) {
        if (dice.below(400) === 0) await publisher.clear();
        else await publisher.take(prompts[dice.below(prompts.length)]!, dice.below(4));
        if (dice.below(10) === 0) await setImmediate();
      }
      // Whatever came last is heard: a mark on its own, another each time, because an old one may be replayed no more.
      await until(async () => {
        const mark = block(100_000 + marks);
        marks += 1;
        await publisher.take(mark);
        for (let n = 0; n < 20; n += 1) await setImmediate();
        return feed.state === "live" && believed(mark)[at] === 1;
      });
      for (const tokens of prompts) {
        const found = believed(tokens);
        expect(found[at], `round ${round}`).toBeLessThanOrEqual(publisher.prefix(tokens));
        known += found[at]!;
      }
    }
    const gaps = engines.reduce((sum, { feed }) => sum + feed.gaps, 0);
    process.stdout.write(
      `events ${JSON.stringify({ published: published(), gaps, restarts, known })}\n`,
    );
    expect(gaps).toBeGreaterThan(EVENTS / 1000);
    // An index that believes nothing would pass all else.
    expect(known).toBeGreaterThan(EVENTS / 1000);
  },
  LONG_MS,
);
