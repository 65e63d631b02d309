// Owns the proof that only an answer says whether an engine makes the same tokens: one that is late, on either side, says nothing.
import { expect, onTestFinished, test } from "vitest";
import { Engine } from "../../../src/gateway/engines/engine.ts";
import { probe } from "../../../src/gateway/tokens/probe.ts";
import type { Ours, Verdict } from "../../../src/gateway/tokens/probe.ts";
import { SimEngine, tokensOf } from "../../support/sim-engine.ts";

interface Body {
  prompt?: string;
  messages?: unknown;
  tools?: unknown;
}

/** What both sides make of a chat. */
const rendered = ({ messages, tools }: Body): string => JSON.stringify([messages, tools ?? null]);

/** Of an engine that makes the same, unless `theirs` or `ours` do otherwise. */
async function probed(
  theirs: (body: Body, sim: SimEngine) => number[] | null | Promise<null>,
  ours: (text: string) => readonly number[] | null = tokensOf,
): Promise<Verdict | null> {
  const sim = await new SimEngine().start();
  sim.tokenize = async (text) => {
    const body = JSON.parse(text) as Body;
    return (await theirs(body, sim)) ?? tokensOf(body.prompt ?? rendered(body));
  };
  const engine = new Engine(sim.name, 16);
  onTestFinished(async () => {
    await engine.calls.destroy();
    await sim.kill().catch(() => {});
  });
  const made: Ours["encode"] = (text) => {
    const ids = ours(text);
    return Promise.resolve(ids === null ? null : Uint32Array.from(ids));
  };
  return probe("m", engine, { marks: [], encode: made, render: (chat) => rendered(chat) });
}

const same = (): null => null;
const isChat = (text: string): boolean => text.includes('"role"');
const hasTools = (text: string): boolean => text.includes("look_up");

test("who makes the same of all is believed of all", async () => {
  expect(await probed(same)).toEqual({ texts: true, chats: true, tools: true, differs: null });
});

test.each([
  ["texts", () => true],
  ["chats", isChat],
  ["tools", hasTools],
])("%s that become tokens here too late say nothing of the engine", async (_what, isLate) => {
  expect(await probed(same, (text) => (isLate(text) ? null : tokensOf(text)))).toBeNull();
});

test.each([
  ["chats", ({ messages }: Body) => messages !== undefined],
  ["tools", ({ tools }: Body) => tools !== undefined],
])(
  "an engine that goes away while it is asked of %s has not said that it differs",
  async (_what, isLast) => {
    const verdict = await probed(async (body, sim) => {
      if (isLast(body)) await sim.kill();
      return null;
    });
    expect(verdict).toBeNull();
  },
);

test("what the engine refuses, or cannot be made here, differs", async () => {
  const refused = await probed(({ messages }) => (messages === undefined ? null : []));
  expect(refused).toMatchObject({ texts: true, chats: false, tools: false });
  expect(await probed(same, () => [])).toMatchObject({ texts: false, chats: false });
  const tools = await probed(({ tools: given }) => (given === undefined ? null : []));
  expect(tools).toEqual({ texts: true, chats: true, tools: false, differs: null });
});
