// Owns the proof that the ring spreads sessions evenly, moves few, and takes the session from where clients name it.
import { expect, test } from "vitest";
import { Engine } from "../../../src/gateway/engines/engine.ts";
import { SessionRing, sessionOf } from "../../../src/gateway/score/ring.ts";
import { call, gatewayBefore } from "../../support/gateways.ts";

const SESSIONS = Array.from({ length: 5000 }, (_none, at) => `seq-${at}`);
const engines = (): Engine[] => [1, 2, 3, 4].map((n) => new Engine(`10.0.0.${n}:8000`, 8));

test("5,000 sessions on four engines: even", () => {
  const all = engines();
  const ring = new SessionRing(all);
  const owners = SESSIONS.map((session) => ring.orderOf(session)(all)[0]!);
  const counts = all.map((engine) => owners.filter((owner) => owner === engine).length);
  expect(Math.max(...counts) / (SESSIONS.length / all.length)).toBeLessThanOrEqual(1.25);
});

test("an engine that goes moves its own sessions alone, and gets them back", () => {
  const all = engines();
  const ring = new SessionRing(all);
  const gone = all[2]!;
  const left = all.filter((engine) => engine !== gone);
  let moved = 0;
  for (const session of SESSIONS) {
    const order = ring.orderOf(session);
    const [before, next] = order(all);
    const [after] = order(left);
    expect(after).toBe(before === gone ? next : before);
    if (before === gone) moved += 1;
  }
  expect(moved / SESSIONS.length).toBeLessThanOrEqual(1 / 4 + 0.02);
});

test("a session is what the header says, else the body", () => {
  expect(sessionOf({ "x-session-id": "a" }, { user: "b" })).toBe("a");
  expect(sessionOf({}, { prompt_cache_key: "c", user: "b" })).toBe("c");
  expect(sessionOf({}, { user: "b" })).toBe("b");
  expect([sessionOf({}, { user: "" }), sessionOf({}, null)]).toEqual([null, null]);
});

test("one session stays at one engine, before a gateway with preset ring", async () => {
  const { url } = await gatewayBefore([["m"], ["m"], ["m"]], { preset: "ring" });
  const by = new Map<string, Set<unknown>>();
  for (let n = 0; n < 60; n += 1) {
    const session = `s-${n % 12}`;
    const headers = { "content-type": "application/json", "x-session-id": session };
    const answer = await call(url, "/v1/completions", { body: '{"model":"m"}', headers });
    const engine = answer.headers["x-gateway-destination-endpoint-served"];
    by.set(session, (by.get(session) ?? new Set()).add(engine));
  }
  expect([...by.values()].map(({ size }) => size)).toEqual(Array.from({ length: 12 }, () => 1));
});
