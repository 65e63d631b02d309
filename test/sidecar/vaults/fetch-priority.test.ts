// Saves wait for restores, but not for ever.
import { expect, test } from "vitest";
import { FetchPriority } from "../../../src/sidecar/vaults/fetch-priority.ts";

test("saves may go when the last restore has ended", async () => {
  const priority = new FetchPriority();
  await priority.whenFree(60_000);
  priority.begin();
  priority.begin();
  let isFree = false;
  const waiting = priority.whenFree(60_000).then(() => {
    isFree = true;
  });
  priority.end();
  await new Promise(setImmediate);
  expect([isFree, priority.isFree]).toEqual([false, false]);
  priority.end();
  await waiting;
  expect([priority.isFree, priority.waiting]).toEqual([true, 0]);
});

test("a save goes on after its longest wait although a restore never ends", async () => {
  const priority = new FetchPriority();
  priority.begin();
  const goesOn = priority.whenFree(5);
  expect(priority.waiting).toBe(1);
  await goesOn;
  expect([priority.isFree, priority.waiting]).toEqual([false, 0]);
});
