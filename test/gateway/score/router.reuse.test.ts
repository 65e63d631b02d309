// Owns the proof that four engines reuse nearly all that could be reused, whatever form conversations are sent in.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { expect, onTestFinished, test } from "vitest";
import { call, until } from "../../support/gateways.ts";
import { rendered, renderingEngines } from "../../support/rendering-engines.ts";
import { tokensOf } from "../../support/sim-engine.ts";

const ENGINES = 4;
const BLOCK = 16;
const TALKS = 24;
const TURNS = 6;
/** What an engine needs for a token: more than a busy machine adds to a request, so that a hit shows in the times that the gateway sees. */
const TOKEN_MS = 0.1;
/** Of 0.72 that one engine with room for everything would reuse, four engines reuse at least this. */
const GOAL = 0.7 / 0.72;
/** Folder of the programs of public routers (bench/routers/README.md); undefined: they are not run. */
const ROUTERS = process.env["TIERKV_TEST_ROUTERS"];
/** Statuses of a router that does not take a form: it reuses nothing then. */
const UNSERVED = [400, 404, 405, 422, 501];
/** Public routers know what they sent as a text, and nothing is forgotten here: they may be as good, and at most this much better. */
const AS_GOOD = 0.99;
const PROGRAMS = [["vllm-router"], ["sglang-router", "launch"]];
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
async function reuseOf({ path, body }: Form, router: readonly string[] = []): Promise<Reuse> {
  const { url: ours, engines, publishers } = await renderingEngines(ENGINES);
  const names = engines.map(({ name }) => name);
  const url = router.length === 0 ? ours : await started(router, names);
  const sum: Reuse = { reused: 0, possible: 0, all: 0 };
  for (const [at, engine] of engines.entries()) {
    let computed: Promise<unknown> = Promise.resolve();
    engine.onPrompt = async (tokens) => {
      const held = publishers[at]!.prefix(tokens) * BLOCK;
      sum.reused += held;
      // One prompt after the other, as long as its missing tokens take.
      computed = computed.then(() => setTimeout((tokens.length - held) * TOKEN_MS));
      await computed;
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
    for (const { code } of answers)
      expect([200, ...(router.length === 0 ? [] : UNSERVED)]).toContain(code);
    await until(async () => {
      for (const publisher of publishers) await publisher.publish([]);
      const { text } = await call(ours, "/metrics");
      const known = [...text.matchAll(/indexed_blocks\{.*gpu.*\} (\d+)$/gm)];
      return publishers.every(({ blocks }, at) => blocks.size === Number(known[at]?.[1]));
    });
  }
  return sum;
}

/** Starts a public router before these engines; returns its URL once it passes requests on. */
async function started(
  [program = "", ...first]: readonly string[],
  engines: readonly string[],
): Promise<string> {
  const [port, figures] = [await freePort(), await freePort()];
  const urls = engines.map((name) => `http://${name}`);
  const argv = [...first, "--worker-urls", ...urls, "--host", "127.0.0.1", "--port", `${port}`];
  const child = spawn(
    join(ROUTERS ?? "", program),
    [...argv, "--policy", "cache_aware", "--prometheus-port", `${figures}`],
    { stdio: "ignore" },
  );
  onTestFinished(() => void child.kill("SIGKILL"));
  const url = `http://127.0.0.1:${port}`;
  await until(async () => {
    expect(child.exitCode).toBeNull();
    const { code } = await call(url, "/v1/completions", {
      body: JSON.stringify({ model: "m", prompt: "ready?", max_tokens: 1 }),
      headers: { "content-type": "application/json" },
    }).catch(() => ({ code: 0 }));
    return code === 200;
  });
  return url;
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
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

test
  .runIf(ROUTERS !== undefined)
  .each(
    PROGRAMS.flatMap((router) =>
      Object.entries(FORMS).map(([name, form]) => ({ router, name, form })),
    ),
  )("$router: conversations as $name are reused as far by the gateway", async (given) => {
  const { router, name, form } = given;
  const theirs = await reuseOf(form, router);
  const ours = await reuseOf(form);
  const shares = { theirs: theirs.reused / theirs.all, ours: ours.reused / ours.all };
  process.stdout.write(`${JSON.stringify({ router: router[0], name, ...shares })}\n`);
  expect(ours.reused / ours.all).toBeGreaterThan((AS_GOOD * theirs.reused) / theirs.all);
});
