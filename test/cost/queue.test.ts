// How long a request waits for its engine: by how many wait before it, as the last ones showed, and forgotten while none comes.
import { expect, test, vi } from "vitest";
import { LOAD_FADE_MS } from "../../src/base/limits/cost.ts";
import { EngineQueue } from "../../src/cost/queue.ts";

test("nobody waits behind nobody; behind others nothing is known before the first", () => {
  const queue = new EngineQueue();
  expect([queue.seconds(0), queue.seconds(3)]).toEqual([0, null]);
  queue.began(0, 0.001);
  expect(queue.seconds(3)).toBe(null);
});

test("each request before it takes what those of late took", () => {
  const queue = new EngineQueue();
  for (let count = 0; count < 40; count += 1) queue.began(10, 2);
  expect(queue.seconds(5)).toBeCloseTo(1);
  for (let count = 0; count < 40; count += 1) queue.began(10, 0.1);
  expect(queue.seconds(5)).toBeCloseTo(0.05);
});

test("what requests waited of late fades while none comes", () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  try {
    const queue = new EngineQueue();
    expect(queue.usualS).toBe(0);
    queue.began(10, 2);
    expect(queue.usualS).toBeCloseTo(2);
    vi.advanceTimersByTime(LOAD_FADE_MS * 2);
    expect(queue.usualS).toBeCloseTo(0.5);
    expect(queue.seconds(10)).toBeCloseTo(2);
  } finally {
    vi.useRealTimers();
  }
});
