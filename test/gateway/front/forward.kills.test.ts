// Owns the proof that engines which die at any moment never leave a client with a stream that looks whole and is not.
import { expect, test } from "vitest";
import { call, gatewayBefore } from "../../support/gateways.ts";
import type { Fault } from "../../support/sim-engine.ts";

const FAULTS: Fault[] = [
  "none",
  "unserved",
  "reset",
  "break-after-head",
  "break-mid-stream",
  "break-mid-event",
];
const STREAMS = 300;
const AT_ONCE = 10;
const SEED = Number(process.env["TIERKV_TEST_SEED"] ?? Math.floor(Math.random() * 2 ** 31));

test(`${STREAMS} streams of engines that fail in every way: whole, or seen to be broken (seed ${SEED})`, async () => {
  let state = SEED >>> 0 || 1;
  const die = (sides: number): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * sides);
  };
  const { engines, url } = await gatewayBefore([["m"], ["m"], ["m"]], { preset: "least-load" });
  const ends = { whole: 0, told: 0, cut: 0, refused: 0 };
  const one = async (): Promise<void> => {
    for (const engine of engines) engine.fault = FAULTS[die(FAULTS.length)]!;
    const body = JSON.stringify({ model: "m", stream: true });
    const headers = { "content-type": "application/json" };
    const { code, text, isCut } = await call(url, "/v1/completions", { body, headers });
    if (code !== 200) {
      expect([502, 503]).toContain(code);
      ends.refused += 1;
      return;
    }
    const events = text.split("\n\n");
    const [tail, last] = [events.pop(), events.at(-1) ?? ""];
    // One engine each, its tokens in order, from the first on.
    const tokens = events.filter((event) => event.includes("token"));
    const by = /"engine":"([^"]+)"/.exec(tokens[0] ?? "")?.[1] ?? "";
    expect(tokens).toEqual(tokens.map((_none, at) => `data: {"engine":"${by}","token":${at}}`));
    if (isCut) ends.cut += 1;
    else if (last.includes('"error"')) ends.told += 1;
    else {
      expect([tail, last, tokens.length]).toEqual(["", "data: [DONE]", 5]);
      ends.whole += 1;
    }
  };
  for (let n = 0; n < STREAMS; n += AT_ONCE)
    await Promise.all(Array.from({ length: AT_ONCE }, one));
  expect(Math.min(ends.whole, ends.told, ends.cut)).toBeGreaterThan(0);
  const { text } = await call(url, "/metrics");
  expect(text.match(/^tierkv_gateway_in_flight\{.*\} 0$/gm)).toHaveLength(3);
});
