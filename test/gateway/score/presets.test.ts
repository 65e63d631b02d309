// Owns the proof that each preset spreads requests as it says.
import { expect, test } from "vitest";
import { Engine } from "../../../src/gateway/engines/engine.ts";
import { orderOf } from "../../../src/gateway/score/presets.ts";

const engines = (): Engine[] => ["a:1", "b:1", "c:1"].map((name) => new Engine(name, 8));

test("round-robin: each in turn, also when one is away for a while", () => {
  const order = orderOf("round-robin");
  const [a, b, c] = engines();
  const names = (all: Engine[], times: number): string[] =>
    Array.from({ length: times }, () => order(all)[0]!.name);
  expect(names([a!, b!, c!], 4)).toEqual(["a:1", "b:1", "c:1", "a:1"]);
  expect(names([a!, c!], 3)).toEqual(["c:1", "a:1", "c:1"]);
  expect(names([a!, b!, c!], 3)).toEqual(["b:1", "a:1", "c:1"]);
});

test("least-load: the fewest in flight first, equals by chance", () => {
  const order = orderOf("least-load");
  const [a, b, c] = engines();
  a!.inFlight = 2;
  c!.inFlight = 1;
  expect(order([a!, b!, c!]).map(({ name }) => name)).toEqual(["b:1", "c:1", "a:1"]);
  b!.inFlight = 1;
  const firsts = new Set(Array.from({ length: 200 }, () => order([a!, b!, c!])[0]!.name));
  expect([...firsts].sort()).toEqual(["b:1", "c:1"]);
});
