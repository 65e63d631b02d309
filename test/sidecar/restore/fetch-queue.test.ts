// Owns the proof that blocks are fetched in the turns of their plans, prefix first, and unwanted ones leave the queue.
import { expect, test } from "vitest";
import { FetchQueue } from "../../../src/sidecar/restore/fetch-queue.ts";
import type { Block } from "../../../src/sidecar/slots/block.ts";

const block = (key: string): Block => ({ key }) as unknown as Block;

function filled(...plans: [turn: number, ...keys: string[]][]): FetchQueue {
  const queue = new FetchQueue();
  for (const [turn, ...keys] of plans) for (const key of keys) queue.add(block(key), turn, 10);
  return queue;
}

function drained(queue: FetchQueue, count = Number.POSITIVE_INFINITY): string {
  const taken: string[] = [];
  for (let next = queue.first; next !== undefined && taken.length < count; next = queue.first) {
    taken.push(next.key);
    queue.shift(10);
  }
  return taken.join("");
}

test("a plan of an earlier turn passes one that came before, each in need order", () => {
  expect(drained(filled([8, "a", "b", "c"], [3, "x", "y"], [9, "q"]))).toBe("xyabcq");
});

test("plans of one turn go as they came, and blocks that come later join theirs", () => {
  expect(drained(filled([5, "a"], [5, "b"], [2, "x"], [5, "c"]))).toBe("xabc");
});

test("a plan that has begun is passed between its blocks", () => {
  const queue = filled([9, "a", "b", "c"]);
  expect(drained(queue, 1)).toBe("a");
  queue.add(block("x"), 4, 10);
  expect(queue.size).toBe(3);
  expect(queue.all().map(({ key }) => key)).toEqual(["x", "b", "c"]);
  expect(drained(queue)).toBe("xbc");
  expect(queue.size).toBe(0);
});

test("unwanted blocks leave, and the rest keeps its order", () => {
  const queue = filled([9, "a", "b", "c"], [4, "x"]);
  expect(drained(queue, 2)).toBe("xa");
  queue.keep(
    ({ key }) => key !== "b",
    (left) => left.length * 10,
  );
  expect(queue.size).toBe(1);
  expect(queue.bytesAfter(0)).toBe(10);
  expect(drained(queue)).toBe("c");
});

test("a plan is told only of blocks before it", () => {
  const queue = filled([9, "a", "b"], [4, "x"], [6, "y"]);
  queue.shift(10);
  expect([4, 5, 6, 9].map((turn) => queue.bytesAfter(turn))).toEqual([30, 30, 20, 0]);
});
