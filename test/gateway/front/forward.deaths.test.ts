// Owns the proof that engines which are killed in mid-stream leave no client with a stream that looks whole and is not.
// @module-tag nightly
import { expect, test } from "vitest";
import { call, gatewayBefore, until } from "../../support/gateways.ts";
import type { Answer } from "../../support/gateways.ts";
import type { SimEngine } from "../../support/sim-engine.ts";

/** The goal's number in the nightly run. */
const KILLS = process.env["TIERKV_TEST_LONG"] === "on" ? 1000 : 50;
/** Models, of two engines each, that die side by side: a dead one is found alive again within a second only. */
const PAIRS = 10;
/** Streams that one death meets. */
const STREAMS = 4;
const TOKENS = 12;
const LONG_MS = 1_200_000;

/** Whether it is whole; throws for what no engine said. */
function isWhole({ text, isCut }: Answer, names: readonly string[]): boolean {
  const events = text.split("\n\n");
  const tail = events.pop();
  const tokens = events.filter((event) => event.includes('"token"'));
  const by = /"engine":"([^"]+)"/.exec(tokens[0] ?? "")?.[1] ?? "";
  expect(names).toContain(by);
  expect(tokens).toEqual(tokens.map((_none, at) => `data: {"engine":"${by}","token":${at}}`));
  const isEnded = text.endsWith("data: [DONE]\n\n");
  if (isEnded) expect([tail, isCut, tokens.length]).toEqual(["", false, TOKENS]);
  else expect(isCut || (events.at(-1) ?? "").includes('"error"')).toBe(true);
  return isEnded;
}

interface Ends {
  whole: number;
  broken: number;
}

/** One engine of the pair dies while it streams, and comes back. */
async function kill(
  url: string,
  model: string,
  pair: readonly SimEngine[],
  turn: number,
  ends: Ends,
): Promise<void> {
  const victim = pair[turn % 2]!;
  const names = pair.map(({ name }) => name);
  let heard: () => void = () => {};
  const mid = new Promise<void>((resolve) => (heard = resolve));
  // It goes on only once it is dead: no stream of its can end before.
  let open: () => void = () => {};
  victim.hold = { after: 1 + (turn % (TOKENS - 2)), until: new Promise((go) => (open = go)) };
  const asked = Array.from({ length: STREAMS }, () =>
    call(url, "/v1/completions", {
      body: JSON.stringify({ model, stream: true }),
      headers: { "content-type": "application/json" },
      onChunk: (chunk) => {
        if (chunk.includes(victim.name)) heard();
      },
    }),
  );
  await mid;
  await victim.kill();
  open();
  for (const answer of await Promise.all(asked)) {
    expect(answer.code).toBe(200);
    if (isWhole(answer, names)) ends.whole += 1;
    else ends.broken += 1;
  }
  victim.hold = null;
  await victim.start();
  await until(async () =>
    (await call(url, "/metrics")).text.includes(`engine_up{engine="${victim.name}"} 1`),
  );
}

test(
  `F46 ${KILLS} engines killed in mid-stream: each stream is whole, ends with an error, or breaks`,
  async () => {
    const models = Array.from({ length: PAIRS }, (_none, at) => `m${at}`);
    const served = models.flatMap((model) => [[model], [model]]);
    const { engines, url } = await gatewayBefore(served, { preset: "round-robin" });
    for (const engine of engines) engine.tokens = TOKENS;
    const ends = { whole: 0, broken: 0 };
    await Promise.all(
      models.map(async (model, at) => {
        const pair = engines.slice(2 * at, 2 * at + 2);
        for (let turn = 0; turn < KILLS / PAIRS; turn += 1) {
          await kill(url, model, pair, turn, ends);
        }
      }),
    );
    expect(ends.broken).toBeGreaterThanOrEqual(KILLS);
    expect(ends.whole + ends.broken).toBe(KILLS * STREAMS);
    const { text } = await call(url, "/metrics");
    expect(text.match(/^tierkv_gateway_in_flight\{.*\} 0$/gm)).toHaveLength(engines.length);
    const counted = [...text.matchAll(/answers_broken_total\{.*\} (\d+)$/gm)];
    expect(counted.reduce((sum, [, n]) => sum + Number(n), 0)).toBe(ends.broken);
  },
  LONG_MS,
);
