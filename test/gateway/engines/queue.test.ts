// Owns the proof that waiting requests are served by priority and then evenly by key, and that whoever floods gives way first.
import { expect, test } from "vitest";
import { FairQueue } from "../../../src/gateway/engines/queue.ts";
import type { Turn } from "../../../src/gateway/engines/queue.ts";

const turn = (key: string, tokens = 100, priority = 0): Turn => ({ key, tokens, priority });

function drain(queue: FairQueue<string>): string[] {
  const served: string[] = [];
  for (let [next] = queue.items(); next !== undefined; [next] = queue.items()) {
    served.push(next);
    queue.remove(next, true);
  }
  return served;
}

test("keys are served evenly by tokens, each in its own order, and a higher priority before all", () => {
  const queue = new FairQueue<string>(100);
  for (let n = 0; n < 8; n += 1) queue.add(`a${n}`, turn("a"));
  for (let n = 0; n < 2; n += 1) queue.add(`long${n}`, turn("b", 400));
  queue.add("first", turn("a", 100, 1));
  queue.add("last", turn("c", 1, -1));
  expect(drain(queue)).toEqual([
    "first",
    "a0",
    "long0",
    "a1",
    "a2",
    "a3",
    "a4",
    "long1",
    "a5",
    "a6",
    "a7",
    "last",
  ]);
  // Who was served while others waited has no claim to more now, and owes nothing to an empty queue.
  queue.add("a8", turn("a"));
  queue.add("b2", turn("b"));
  expect(drain(queue)).toEqual(["a8", "b2"]);
});

test("a key that comes late has its share from then on, and not of what was before", () => {
  const queue = new FairQueue<string>(100);
  for (let n = 0; n < 6; n += 1) queue.add(`a${n}`, turn("a"));
  for (const served of ["a0", "a1", "a2"]) queue.remove(served, true);
  for (let n = 0; n < 3; n += 1) queue.add(`b${n}`, turn("b"));
  expect(drain(queue)).toEqual(["b0", "a3", "b1", "a4", "b2", "a5"]);
});

test("where too many wait, the flood's last gives way, or what has the lowest priority", () => {
  const queue = new FairQueue<string>(4);
  for (let n = 0; n < 4; n += 1) expect(queue.add(`a${n}`, turn("a"))).toBeNull();
  expect(queue.add("a4", turn("a"))).toBe("a4");
  expect(queue.add("b0", turn("b"))).toBe("a3");
  expect(queue.add("high", turn("a", 100, 1))).toBe("a2");
  expect(queue.add("low", turn("d", 1, -1))).toBe("low");
  expect(drain(queue)).toEqual(["high", "a0", "b0", "a1"]);
});

test("keys that clients make up are not kept, also where the queue is never empty", () => {
  const queue = new FairQueue<string>(4);
  queue.add("stays", turn("a", 100, -1));
  for (let n = 0; n < 100; n += 1) {
    expect(queue.add(`${n}`, turn(`made-up-${n}`))).toBeNull();
    queue.remove(`${n}`, true);
  }
  expect(queue.keys).toBeLessThanOrEqual(8);
  expect(drain(queue)).toEqual(["stays"]);
});
