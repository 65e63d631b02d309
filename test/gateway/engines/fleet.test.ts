// Owns the proof that waiting requests have a bound and a time, and that engines come, go, and leave their place to others.
import { expect, onTestFinished, test } from "vitest";
import { GATEWAY_ENGINES_MAX, GATEWAY_WAITING_MAX } from "../../../src/base/limits/gateway.ts";
import { Fleet } from "../../../src/gateway/engines/fleet.ts";
import { leastLoad } from "../../../src/gateway/score/presets.ts";
import { SILENT } from "../../support/gateways.ts";

const NEVER = new AbortController().signal;

/** Engines that are taken for up, and are never asked. */
function fleetOf(engines: readonly string[], waitMs = 60_000): Fleet {
  const fleet = new Fleet({ engines, inFlightMax: 1, waitMs, logger: SILENT });
  for (const engine of fleet.engines) engine.setUp([{ id: "m" }]);
  onTestFinished(() => fleet.close());
  return fleet;
}

test("as many wait as may; one more is told so at once, and those that wait are served in turn", async () => {
  const fleet = fleetOf(["a:1"]);
  const engine = await fleet.enter("m", leastLoad, NEVER);
  if (typeof engine === "string") throw new Error(engine);
  const order: number[] = [];
  const waiting = Array.from({ length: GATEWAY_WAITING_MAX }, (_none, at) =>
    fleet.enter("m", leastLoad, NEVER).then(() => order.push(at)),
  );
  expect(fleet.waiting).toBe(GATEWAY_WAITING_MAX);
  expect(await fleet.enter("m", leastLoad, NEVER)).toBe("queue_full");
  for (const one of waiting) {
    fleet.leave(engine);
    await one;
  }
  expect(order).toEqual(waiting.map((_one, at) => at));
  expect(fleet.waiting).toBe(0);
});

test("who waited its time is shed, and is told apart from who finds no engine, or no model", async () => {
  const fleet = fleetOf(["a:1"], 5);
  const engine = await fleet.enter("m", leastLoad, NEVER);
  expect(await fleet.enter("m", leastLoad, NEVER)).toBe("waited");
  expect(await fleet.enter("other", leastLoad, NEVER)).toBe("no_model");
  expect(typeof engine).toBe("object");
  fleet.engines[0]!.setDown("gone", "died");
  expect(await fleet.enter("m", leastLoad, NEVER)).toBe("no_engine");
  const left = new AbortController();
  left.abort();
  expect(await fleet.enter("m", leastLoad, left.signal)).toBe("gone");
});

test("an engine that leaves makes room for the next, and there is a most", async () => {
  const fleet = fleetOf(["a:1", "b:1", "c:1"]);
  const before = fleet.generation;
  await fleet.remove(fleet.engines[1]!);
  expect(fleet.engines.map(({ name }) => name)).toEqual(["a:1", "c:1"]);
  expect(fleet.generation).toBeGreaterThan(before);
  expect(fleet.add("127.0.0.1:1", "d")).toMatchObject({ id: "d" });
  for (let n = fleet.engines.length; n < GATEWAY_ENGINES_MAX; n += 1) {
    expect(fleet.add(`127.0.0.1:${n}`)).not.toBeNull();
  }
  expect(fleet.engines).toHaveLength(GATEWAY_ENGINES_MAX);
  expect(fleet.add("127.0.0.1:99")).toBeNull();
});

test("a request that waits for an engine that leaves is told that there is none", async () => {
  const fleet = fleetOf(["a:1"]);
  await fleet.enter("m", leastLoad, NEVER);
  const waiting = fleet.enter("m", leastLoad, NEVER);
  void fleet.remove(fleet.engines[0]!);
  expect(await waiting).toBe("no_engine");
});
