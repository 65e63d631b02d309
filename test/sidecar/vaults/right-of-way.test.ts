// Saves wait for restores, and not for ever.
import { expect, test } from "vitest";
import { RightOfWay } from "../../../src/sidecar/vaults/right-of-way.ts";

test("the way is free when the last restore has ended", async () => {
  const way = new RightOfWay();
  await way.whenFree(60_000);
  way.begin();
  way.begin();
  let isFree = false;
  const waiting = way.whenFree(60_000).then(() => {
    isFree = true;
  });
  way.end();
  await new Promise(setImmediate);
  expect([isFree, way.isFree]).toEqual([false, false]);
  way.end();
  await waiting;
  expect([way.isFree, way.waiting]).toEqual([true, 0]);
});

test("a save goes on after its longest wait although a restore never ends", async () => {
  const way = new RightOfWay();
  way.begin();
  const goesOn = way.whenFree(5);
  expect(way.waiting).toBe(1);
  await goesOn;
  expect([way.isFree, way.waiting]).toEqual([false, 0]);
});
