// Owns the proof that each preset spreads requests as it says.
import { expect, test } from "vitest";
import { Engine } from "../../../src/gateway/engines/engine.ts";
import {
  leastLoad,
  prefixWeighted,
  roundRobin,
  soonest,
} from "../../../src/gateway/score/presets.ts";

const engines = (): Engine[] => ["a:1", "b:1", "c:1"].map((name) => new Engine(name, 8));

test("round-robin: each in turn, also when one is away for a while", () => {
  const order = roundRobin();
  const [a, b, c] = engines();
  const names = (all: Engine[], times: number): string[] =>
    Array.from({ length: times }, () => order(all)[0]!.name);
  expect(names([a!, b!, c!], 4)).toEqual(["a:1", "b:1", "c:1", "a:1"]);
  expect(names([a!, c!], 3)).toEqual(["c:1", "a:1", "c:1"]);
  expect(names([a!, b!, c!], 3)).toEqual(["b:1", "a:1", "c:1"]);
});

test("least-load: the fewest in flight first, equals by chance", () => {
  const order = leastLoad;
  const [a, b, c] = engines();
  a!.inFlight = 2;
  c!.inFlight = 1;
  expect(order([a!, b!, c!]).map(({ name }) => name)).toEqual(["b:1", "c:1", "a:1"]);
  b!.inFlight = 1;
  const firsts = new Set(Array.from({ length: 200 }, () => order([a!, b!, c!])[0]!.name));
  expect(firsts).toEqual(new Set(["b:1", "c:1"]));
});

test("prefix-weighted: a whole hit beats an idle engine, a third of one does not", () => {
  const [a, b] = engines();
  a!.inFlight = 7;
  const first = (share: number): string =>
    prefixWeighted((engine) => (engine === a ? share : 0))([a!, b!])[0]!.name;
  expect([first(1), first(0.3)]).toEqual(["a:1", "b:1"]);
});

test("earliest-token: the earliest first; those that hold as much and are about as early by requests in flight", () => {
  const [a, b, c] = engines();
  a!.inFlight = 3;
  let hits = [0, 0, 0];
  const of = (values: number[]) => (engine: Engine) => values["abc".indexOf(engine.name[0]!)]!;
  const order = (...ms: number[]): string[] =>
    soonest(of(ms), of(hits))([a!, b!, c!]).map(({ name }) => name[0]!);
  expect(order(100, 300, 200)).toEqual(["a", "c", "b"]);
  expect(order(100, 105, 200)).toEqual(["b", "a", "c"]);
  hits = [16, 0, 0];
  expect(order(100, 105, 200)).toEqual(["a", "b", "c"]);
});
