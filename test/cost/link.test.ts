// A link's rate is that of all transfers together, follows a change within a few hundred busy ms, and is doubted while nothing comes.
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { Flow, Link } from "../../src/cost/link.ts";
import { LINK_STALE_MS } from "../../src/limits-cost.ts";

beforeEach(() => void vi.useFakeTimers({ toFake: ["performance"] }));
afterEach(() => void vi.useRealTimers());

/** One transfer alone: `bytes` in `ms`, of which 2 ms of waiting. */
function transfer(flow: Flow, bytes: number, ms: number, isCut = false): void {
  flow.begin(2);
  vi.advanceTimersByTime(ms);
  flow.moved(bytes);
  flow.end(isCut);
}

/** A flow of about 100 Mb/s, and its rate. */
function knownFlow(): { flow: Flow; known: number } {
  const flow = new Flow();
  for (let round = 0; round < 5; round += 1) transfer(flow, 1.2e6, 102);
  return { flow, known: flow.rate ?? 0 };
}

describe("a flow", () => {
  test("knows nothing first, then what was measured, waiting apart", () => {
    const flow = new Flow();
    expect([flow.rate, flow.isStale]).toEqual([null, true]);
    transfer(flow, 1e6, 12);
    expect(flow.rate).toBeCloseTo(100e6, -5);
    expect(flow.isStale).toBe(false);
    vi.advanceTimersByTime(LINK_STALE_MS + 1);
    expect(flow.isStale).toBe(true);
  });

  test("two transfers at once share it: their bytes count together", () => {
    const flow = new Flow();
    flow.begin(2);
    flow.begin(2);
    vi.advanceTimersByTime(102);
    flow.moved(5e6);
    flow.end();
    flow.moved(5e6);
    flow.end();
    expect(flow.rate).toBeCloseTo(100e6, -6);
  });

  test("follows a link that became a hundred times slower, and one that recovered", () => {
    const flow = new Flow();
    for (let round = 0; round < 20; round += 1) transfer(flow, 1e7, 102);
    for (let round = 0; round < 5; round += 1) transfer(flow, 1e5, 102);
    expect(flow.rate).toBeLessThan(5e6);
    for (let round = 0; round < 5; round += 1) transfer(flow, 1e7, 102);
    expect(flow.rate).toBeGreaterThan(80e6);
  });

  test("is doubted while a transfer brings nothing", () => {
    const flow = new Flow();
    transfer(flow, 1e7, 102);
    flow.begin(2);
    vi.advanceTimersByTime(20);
    expect(flow.rate).toBeGreaterThan(70e6);
    vi.advanceTimersByTime(600);
    expect(flow.rate).toBeLessThan(10e6);
  });

  test("is not called slow before its first bytes could have been heard of", () => {
    const { flow, known } = knownFlow();
    flow.begin(2);
    vi.advanceTimersByTime(22);
    expect(flow.rate).toBe(known);
    flow.moved(24e4);
    vi.advanceTimersByTime(20);
    expect(flow.rate).toBeGreaterThan(known * 0.75);
  });

  test("is not called slower for what has come since bytes were last heard of", () => {
    const { flow, known } = knownFlow();
    flow.begin(0);
    vi.advanceTimersByTime(19);
    for (let tick = 0; tick < 10; tick += 1) {
      vi.advanceTimersByTime(1);
      flow.moved(24e4);
      vi.advanceTimersByTime(19);
      expect(flow.rate).toBeGreaterThan(known * 0.95);
    }
  });

  test("that was given up at once says nothing of the link: what was under way is not heard of", () => {
    const { flow, known } = knownFlow();
    transfer(flow, 1e4, 22, true);
    expect(flow.rate).toBe(known);
  });

  test("that was given up after a while without bytes is slow; one that had nothing to bring says nothing", () => {
    const flow = new Flow();
    transfer(flow, 1e7, 102);
    transfer(flow, 0, 1000);
    expect(flow.rate).toBeGreaterThan(90e6);
    transfer(flow, 0, 1000, true);
    expect(flow.rate).toBeLessThan(1e6);
  });

  test.each([100, 1000, 10_000])(
    "of %d Mb/s that breaks down is known as slow from one given-up transfer on",
    (mbit) => {
      const flow = new Flow();
      for (let round = 0; round < 5; round += 1) transfer(flow, mbit * 12_500, 102);
      transfer(flow, 0, 112, true);
      expect(flow.rate).toBeLessThan(2.5e6);
      // What came agrees with what is known now: both count.
      transfer(flow, 125_000, 102, true);
      expect(flow.rate).toBeGreaterThan(1e6);
      expect(flow.rate).toBeLessThan(2.5e6);
    },
  );

  test("keeps what it knows when a transfer is given up that was as fast as could be expected", () => {
    const flow = new Flow();
    for (let round = 0; round < 5; round += 1) transfer(flow, 1e7, 102);
    transfer(flow, 1e7, 112, true);
    transfer(flow, 0, 30, true);
    expect(flow.rate).toBeGreaterThan(90e6);
  });

  test("that recovered is known as such after two transfers, however short", () => {
    const flow = new Flow();
    for (let round = 0; round < 5; round += 1) transfer(flow, 3e5, 242);
    transfer(flow, 5e5, 7);
    expect(flow.rate).toBeGreaterThan(40e6);
    transfer(flow, 5e5, 7);
    expect(flow.rate).toBeGreaterThan(60e6);
  });

  test("is not taken for slow because of small transfers", () => {
    const flow = new Flow();
    transfer(flow, 1e7, 102);
    for (let round = 0; round < 20; round += 1) transfer(flow, 8e3, 3);
    expect(flow.rate).toBeGreaterThan(80e6);
  });

  test("that breaks down in the middle of a transfer is known as slow before its end", () => {
    const flow = new Flow();
    flow.begin(2);
    for (let tick = 0; tick < 20; tick += 1) {
      vi.advanceTimersByTime(20);
      flow.moved(2e6);
    }
    expect(flow.rate).toBeCloseTo(100e6, -7);
    for (let tick = 0; tick < 20; tick += 1) {
      vi.advanceTimersByTime(20);
      flow.moved(2e4);
    }
    expect(flow.rate).toBeLessThan(10e6);
    flow.end();
  });

  test("whose bytes come in lumps is not taken for slow within one", () => {
    const flow = new Flow();
    flow.begin(2);
    for (let lump = 0; lump < 3; lump += 1) {
      vi.advanceTimersByTime(262);
      for (let piece = 0; piece < 4; piece += 1) {
        flow.moved(262_144);
        expect(flow.rate === null || piece < 3 || flow.rate > 3.5e6).toBe(true);
      }
    }
    flow.end();
    expect(flow.rate).toBeGreaterThan(3.5e6);
  });

  test("a few bytes say nothing", () => {
    const flow = new Flow();
    transfer(flow, 100, 50);
    expect(flow.rate).toBeNull();
  });
});

describe("a link", () => {
  test("expects answers as they came, longer questions later", () => {
    const link = new Link();
    const unknown = [null, null, true];
    expect([link.questionMs(36), link.questionMostMs(36), link.isUnasked]).toEqual(unknown);
    link.answered(36, 900);
    expect(link.questionMs(36)).toBeNull();
    for (let round = 0; round < 10; round += 1) {
      link.answered(36, 1);
      link.answered(36_000, 11);
    }
    expect(link.questionMs(36)).toBeCloseTo(1, 0);
    expect(link.questionMs(18_000)).toBeCloseTo(6, 0);
    expect(link.questionMostMs(36)).toBeGreaterThan(1);
    expect(link.isUnasked).toBe(false);
  });

  test("turns are about a twentieth of a second long, within their bounds", () => {
    const link = new Link();
    const most = 16 * 2 ** 20;
    expect(link.turnBytes("down", most)).toBe(256 * 1024);
    link.up.note(50e6, 1000);
    expect(link.restoreRate).toBe(link.up.rate);
    link.down.begin(0);
    vi.advanceTimersByTime(1000);
    expect(link.restoreRate).toBeLessThan(5e6);
    link.down.moved(50e6);
    link.down.end();
    expect(link.turnBytes("down", most)).toBeCloseTo(2.5e6, -5);
    link.down.note(1e10, 1000);
    expect(link.turnBytes("down", most)).toBe(most);
    expect(link.restoreRate).toBe(link.down.rate);
  });
});
