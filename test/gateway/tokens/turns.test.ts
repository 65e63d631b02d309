// Owns the proof that few texts are turned into tokens at once, and that nobody waits for one longer than it may take.
import { expect, test } from "vitest";
import {
  GATEWAY_ENCODES_AT_ONCE,
  GATEWAY_ENCODES_WAITING_MAX,
} from "../../../src/base/limits/gateway.ts";
import { Turns } from "../../../src/gateway/tokens/turns.ts";

/** Work that is begun, and ends when it is told to. */
function works(): { begun: (() => void)[]; work(): Promise<string> } {
  const begun: (() => void)[] = [];
  return { begun, work: () => new Promise((resolve) => begun.push(() => resolve("made"))) };
}

test("as many as may run at once run, and the next begins when one has ended", async () => {
  const turns = new Turns();
  const { begun, work } = works();
  const made = Array.from({ length: 5 }, () => turns.take(work, 60_000));
  for (let ended = 0; ended < 5; ended += 1) {
    expect(begun).toHaveLength(Math.min(5, ended + GATEWAY_ENCODES_AT_ONCE));
    begun[ended]!();
    expect(await made[ended]).toBe("made");
  }
});

test("what has not begun in time never does, and what has goes on", async () => {
  const turns = new Turns();
  const { begun, work } = works();
  const running = Array.from({ length: GATEWAY_ENCODES_AT_ONCE }, () => turns.take(work, 60_000));
  expect(await turns.take(work, 1)).toBeNull();
  begun[0]!();
  expect(await running[0]).toBe("made");
  expect(begun).toHaveLength(GATEWAY_ENCODES_AT_ONCE);
});

test("of too many that wait, the first gives way, and a failure is the caller's alone", async () => {
  const turns = new Turns();
  const { begun, work } = works();
  const fails = turns.take(() => Promise.reject(new Error("no")), 60_000);
  await expect(fails).rejects.toThrow("no");
  const all = Array.from(
    { length: GATEWAY_ENCODES_AT_ONCE + GATEWAY_ENCODES_WAITING_MAX + 1 },
    () => turns.take(work, 60_000),
  );
  expect(await all[GATEWAY_ENCODES_AT_ONCE]).toBeNull();
  for (let at = 0; at < begun.length; at += 1) {
    begun[at]!();
    await new Promise(setImmediate);
  }
  expect((await Promise.all(all)).filter((made) => made === null)).toHaveLength(1);
});
