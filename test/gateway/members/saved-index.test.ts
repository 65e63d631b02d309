// Owns the proof that a saved index makes the next gateway warm, and is believed only where the engine still is the one that told it.
import { chmodSync, readFileSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { EventFeed } from "../../../src/gateway/events/feed.ts";
import { BlockIndex } from "../../../src/gateway/index/index-of-blocks.ts";
import { loadIndex, saveIndex } from "../../../src/gateway/members/saved-index.ts";
import { call, gatewayBefore, SILENT, testFolder, until } from "../../support/gateways.ts";
import { batchOf, believed, stored } from "../../support/kv-batches.ts";
import { SimPublisher } from "../../support/sim-publisher.ts";

const prompt = (seed: number, blocks = 3): number[] =>
  Array.from({ length: blocks * 4 }, (_none, at) => seed * 1000 + at);

async function published(kept: number): Promise<SimPublisher> {
  const publisher = await new SimPublisher({ kept }).start();
  onTestFinished(() => publisher.stop());
  return publisher;
}

test("a gateway that starts anew knows what engines replay no more, and what changed meanwhile", async () => {
  const publisher = await published(4);
  const indexFile = join(testFolder(), "state", "index");
  const start = (): ReturnType<typeof gatewayBefore> =>
    gatewayBefore([["m"]], { indexFile, preset: "earliest-token" }, [publisher]);
  const held = async (url: string, seed: number): Promise<string | undefined> => {
    const body = JSON.stringify({ model: "m", prompt: [...prompt(seed), 1], max_tokens: 1 });
    const headers = { "content-type": "application/json" };
    const answer = await call(url, "/v1/completions", { body, headers });
    return answer.headers["x-tierkv-hit-tokens"] as string | undefined;
  };
  const blocks = async (url: string): Promise<number> => {
    const { text } = await call(url, "/metrics");
    return Number(/indexed_blocks{.*tier="gpu"} (\d+)/.exec(text)?.[1]);
  };
  const first = await start();
  await until(async () => {
    await publisher.publish([]);
    return /events_live\{.*\} 1$/m.test((await call(first.url, "/metrics")).text);
  });
  for (let seed = 1; seed <= 10; seed += 1) await publisher.take(prompt(seed));
  await until(async () => (await blocks(first.url)) === 30);
  await first.close();
  await publisher.take(prompt(11), 2);
  const second = await start();
  await until(async () => (await blocks(second.url)) === publisher.blocks.size);
  expect(publisher.blocks.size).toBe(31);
  expect(await held(second.url, 5)).toBe("12/13");
  expect(await held(second.url, 11)).toBe("12/13");
  expect(await held(second.url, 1)).toBe(`${4 * publisher.prefix(prompt(1))}/13`);
  expect(publisher.prefix(prompt(1))).toBeLessThan(3);
});

/** What a gateway that starts now makes of the file. */
function opened(
  { events, replays }: SimPublisher,
  path: string,
): { index: BlockIndex; feed: EventFeed; before: number; isKept: () => boolean } {
  const index = new BlockIndex(1, 1000);
  const known = loadIndex(path)?.get(events);
  if (known !== undefined) expect(index.load(0, known.blocks)).toBe(true);
  let isKept = known !== undefined;
  const feed = new EventFeed({
    events,
    replays,
    logger: SILENT,
    resume: known?.mark ?? null,
    sink: {
      apply: (payload) => index.apply(0, payload),
      clear() {
        isKept = false;
        index.clear(0);
      },
      trust: (isTrusted) => index.trust(0, isTrusted),
    },
  });
  return { index, feed, before: index.blocks(0), isKept: () => isKept };
}

const SEED = Number(process.env["TIERKV_TEST_SEED"] ?? Math.floor(Math.random() * 2 ** 31));

/** Polls before another prompt stands for what the feed has to know, and most prompts of a round. */
const POLLS_PER_MARK = 100;
const MARKS_MAX = 1000;

test(`nothing is believed that is not held, over restarts of both sides (seed ${SEED})`, async () => {
  let state = SEED >>> 0 || 1;
  const die = (sides: number): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * sides);
  };
  const kept = 10;
  const publisher = await published(kept);
  const path = join(testFolder(), "index");
  const prompts = Array.from({ length: 12 }, (_none, seed) => [
    ...prompt(1000 + (seed % 3), 2),
    ...prompt(seed, 1 + (seed % 4)),
  ]);
  const work = async (batches: number): Promise<void> => {
    for (let n = 0; n < batches; n += 1) {
      await publisher.take(prompts[die(prompts.length)]!, die(4));
    }
  };
  // The last batch may fall out of what is replayed, or be another engine's with the same numbers.
  const meetFate = async (last: number): Promise<void> => {
    const fate = die(4);
    if (fate === 0) await work(kept + 5);
    if (fate === 1) {
      publisher.stop();
      await publisher.start();
      // Its numbers go on where the other one's ended.
      for (let n = last + die(kept - 2); n >= 0; n -= 1) await publisher.publish([]);
      await work(die(2));
    }
    if (fate > 1) await work(die(4));
  };
  let warm = 0;
  for (let round = 0; round < 12; round += 1) {
    const { index, feed, before, isKept } = opened(publisher, path);
    feed.start();
    let mark = prompt(5000 + round * MARKS_MAX, 1);
    let polls = 0;
    await until(async () => {
      polls += 1;
      // The engine tells of a block once. A feed that begins too late for that, and for its replay, needs another.
      if (polls % POLLS_PER_MARK === 0) {
        mark = prompt(5000 + round * MARKS_MAX + polls / POLLS_PER_MARK, 1);
      }
      await publisher.take(mark);
      await publisher.publish([]);
      return feed.state === "live" && believed(index, [0], mark, 4)[0] === 1;
    });
    if (isKept() && before > 0) warm += 1;
    for (const tokens of prompts) {
      const [held] = believed(index, [0], tokens, 4);
      expect(held, `round ${round}`).toBeLessThanOrEqual(publisher.prefix(tokens));
    }
    // Events go on while it is written.
    const last = feed.mark!;
    const saving = saveIndex(path, index, [
      { holder: 0, events: publisher.events, mark: last, form: null },
    ]);
    await Promise.all([saving, work(3)]);
    feed.close();
    await meetFate(last.sequence);
  }
  expect(warm).toBeGreaterThan(0);
});

test("a file that is not whole, of another version, too large or of nobody's is not used", async () => {
  const folder = testFolder();
  const path = join(folder, "index");
  expect(loadIndex(path)).toBeNull();
  const index = new BlockIndex(2);
  for (const [at, tokens] of [
    [0, [1, 2]],
    [1, [3, 4]],
  ] as const) {
    index.trust(at, true);
    index.apply(at, batchOf(stored(2n ** 64n - 1n, null, tokens, { group_idx: 3 })));
    index.apply(at, batchOf(stored(5n, null, [7, 8], { tier: "vault", group_idx: 1 })));
  }
  const mark = { sequence: 7, digest: "d" };
  const form = { algorithm: "sha256", root: "ab", tagging: null } as const;
  const of = { events: "10.0.0.1:5557", mark, form };
  await saveIndex(path, index, [
    { holder: 1, ...of },
    { holder: 0, ...of, events: "[::1]:1" },
  ]);
  const loaded = loadIndex(path)!;
  expect(loaded.get("10.0.0.1:5557")).toMatchObject(of);
  const again = new BlockIndex(2, 10);
  expect(again.load(0, loaded.get("10.0.0.1:5557")!.blocks)).toBe(true);
  again.trust(0, true);
  expect([again.blockSize(0), again.pulls(0), again.blocks(0, "vault")]).toEqual([2, true, 1]);
  expect([believed(again, [0], [3, 4], 2), believed(again, [0], [1, 2], 2)]).toEqual([[1], [0]]);
  expect(again.save(0)).toEqual(index.save(1));
  // Bytes that are no such part leave nothing behind.
  for (const odd of [Buffer.alloc(7), Buffer.alloc(24, 0xff), index.save(0).subarray(0, -8)]) {
    expect(again.load(1, odd)).toBe(false);
    expect(again.blocks(1)).toBe(0);
  }

  const whole = readFileSync(path);
  const damaged = (change: (bytes: Buffer) => void): (() => unknown) => {
    const bytes = Buffer.from(whole);
    change(bytes);
    writeFileSync(path, bytes);
    return () => loadIndex(path);
  };
  expect(damaged((bytes) => (bytes[7] = 0x31))).toThrow("another version");
  for (const at of [9, 40, whole.length - 20, whole.length - 16]) {
    expect(damaged((bytes) => (bytes[at]! ^= 1))).toThrow("not whole");
  }
  writeFileSync(path, whole.subarray(0, -16));
  expect(() => loadIndex(path)).toThrow("not whole");
  writeFileSync(path, "x");
  expect(() => loadIndex(path)).toThrow("another version");
  truncateSync(path, 2 ** 30);
  expect(() => loadIndex(path)).toThrow("it has 1073741824 bytes");
  chmodSync(path, 0o600);
});
