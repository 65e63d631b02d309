// Owns the proof that four engines reuse nearly all that could be reused, whatever form conversations are sent in.
import { expect, test } from "vitest";
import { call, until } from "../../support/gateways.ts";
import { rendered, renderingEngines } from "../../support/rendering-engines.ts";
import { tokensOf } from "../../support/sim-engine.ts";

const ENGINES = 4;
const BLOCK = 16;
const TALKS = 24;
const TURNS = 6;
/** Of 0.72 that one engine with room for everything would reuse, four engines reuse at least this. */
const GOAL = 0.7 / 0.72;
const CHAT = "/v1/chat/completions";

/** What was said so far: a user's texts, and what came back for all but the last of them. */
type Said = readonly { asked: string; answered: string }[];

interface Form {
  path: string;
  body(said: Said): object;
}

const DETAILS = '{"city":"Oslo"}';

const chatOf = (said: Said, content: (text: string) => unknown): object[] =>
  said.flatMap(({ asked, answered }) => [
    { role: "user", content: content(asked) },
    { role: "assistant", content: content(answered) },
  ]);

const asText = (text: string): string => text;
const asParts = (text: string): object[] => [{ type: "text", text }];

/** Drops the answer that is not given yet. */
const open = (messages: readonly object[]): object[] => messages.slice(0, -1);

const FORMS: Readonly<Record<string, Form>> = {
  "a text": {
    path: "/v1/completions",
    body: (said) => ({ prompt: said.map(({ asked, answered }) => asked + answered).join("") }),
  },
  "token ids": {
    path: "/v1/completions",
    body: (said) => ({
      prompt: tokensOf(said.map(({ asked, answered }) => asked + answered).join("")),
    }),
  },
  "a chat of texts": { path: CHAT, body: (said) => ({ messages: open(chatOf(said, asText)) }) },
  "a chat of parts": { path: CHAT, body: (said) => ({ messages: open(chatOf(said, asParts)) }) },
  "a chat with tool calls": {
    path: CHAT,
    body: (said) => ({
      tools: [{ type: "function", function: { name: "f", parameters: {} } }],
      messages: open(
        said.flatMap(({ asked, answered }, at) => [
          // The first text is a user's, the others are what the tool answered.
          at === 0
            ? { role: "user", content: asked }
            : { role: "tool", tool_call_id: `c${at - 1}`, content: asked },
          { role: "assistant", tool_calls: [toolCall(at, answered)] },
        ]),
      ),
    }),
  },
  "a chat with effort": {
    path: CHAT,
    body: (said) => ({ reasoning_effort: "high", messages: open(chatOf(said, asText)) }),
  },
  "a chat with documents": {
    path: CHAT,
    body: (said) => ({ documents: [{ text: "d" }], messages: open(chatOf(said, asText)) }),
  },
  "the Messages API": {
    path: "/v1/messages",
    body: (said) => ({
      system: asParts("be brief"),
      messages: open(
        said.flatMap(({ asked, answered }, at) => [
          {
            role: "user",
            content:
              at === 0
                ? asParts(asked)
                : [{ type: "tool_result", tool_use_id: `c${at - 1}`, content: asked }],
          },
          {
            role: "assistant",
            content: [{ type: "tool_use", id: `c${at}`, name: "f", input: { answered } }],
          },
        ]),
      ),
    }),
  },
  "the Responses API": {
    path: "/v1/responses",
    body: (said) => ({
      instructions: "be brief",
      input: open(
        said.flatMap(({ asked, answered }, at) => [
          at === 0
            ? { role: "user", content: [{ type: "input_text", text: asked }] }
            : { type: "function_call_output", call_id: `c${at - 1}`, output: asked },
          { type: "function_call", call_id: `c${at}`, name: "f", arguments: DETAILS + answered },
        ]),
      ),
    }),
  },
  "an invocation": {
    path: "/invocations",
    body: (said) => ({ messages: open(chatOf(said, asText)) }),
  },
};

const toolCall = (at: number, answered: string): object => ({
  id: `c${at}`,
  type: "function",
  function: { name: "f", arguments: DETAILS + answered },
});

/** The turns of one conversation up to `turn`, each of about 600 characters. */
const saidIn = (talk: number, turn: number): Said =>
  Array.from({ length: turn + 1 }, (_none, at) => ({
    asked: `talk ${talk} asks ${at}. `.repeat(16),
    answered: `talk ${talk} hears ${at}. `.repeat(16),
  }));

interface Reuse {
  reused: number;
  possible: number;
  all: number;
}

/** Sends each conversation's turns in rounds, all conversations at once. */
async function reuseOf({ path, body }: Form): Promise<Reuse> {
  const { url, engines, publishers } = await renderingEngines(ENGINES);
  const sum: Reuse = { reused: 0, possible: 0, all: 0 };
  for (const [at, engine] of engines.entries()) {
    engine.onPrompt = async (tokens) => {
      sum.reused += publishers[at]!.prefix(tokens) * BLOCK;
      await publishers[at]!.take(tokens);
    };
  }
  const ideal = new Ideal();
  for (let turn = 0; turn < TURNS; turn += 1) {
    const asked = Array.from({ length: TALKS }, (_none, talk) => body(saidIn(talk, turn)));
    for (const fields of asked) {
      const tokens = rendered(path, { ...fields });
      sum.all += tokens.length;
      sum.possible += ideal.take(tokens);
    }
    const answers = await Promise.all(
      asked.map((fields) =>
        call(url, path, {
          body: JSON.stringify({ model: "m", stream: true, ...fields }),
          headers: { "content-type": "application/json" },
        }),
      ),
    );
    for (const { code } of answers) expect(code).toBe(200);
    await until(async () => {
      for (const publisher of publishers) await publisher.publish([]);
      const { text } = await call(url, "/metrics");
      const known = [...text.matchAll(/indexed_blocks\{.*gpu.*\} (\d+)$/gm)];
      return publishers.every(({ blocks }, at) => blocks.size === Number(known[at]?.[1]));
    });
  }
  return sum;
}

/** One engine that keeps every block. */
class Ideal {
  readonly #blocks = new Map<string, number>();

  /** Returns the tokens that it had of a prompt. */
  take(tokens: readonly number[]): number {
    let [parent, held] = [0, 0];
    for (let at = 0; at + BLOCK <= tokens.length; at += BLOCK) {
      const block = `${parent}:${tokens.slice(at, at + BLOCK).join()}`;
      const known = this.#blocks.get(block);
      if (known !== undefined) held += BLOCK;
      parent = known ?? this.#blocks.size + 1;
      this.#blocks.set(block, parent);
    }
    return held;
  }
}

test.each(Object.entries(FORMS))(
  "conversations as %s are reused nearly as far as they can be",
  async (name, form) => {
    const { reused, possible, all } = await reuseOf(form);
    const shares = { reuse: reused / all, possible: possible / all };
    process.stdout.write(`${JSON.stringify({ name, ...shares })}\n`);
    // Otherwise hardly anything would have to be found.
    expect(possible / all).toBeGreaterThan(0.6);
    expect(reused / possible).toBeGreaterThan(GOAL);
  },
);
