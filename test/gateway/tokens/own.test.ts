// Owns the proof that a model's tokens are made in the gateway only where its engine made the same, and asked for everywhere else.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { GATEWAY_ENCODE_CHARS_MAX } from "../../../src/base/limits/gateway.ts";
import type { GatewayConfig } from "../../../src/config/config.ts";
import { askGateway } from "../../../src/control/gateway-link.ts";
import type { ShownTokenizer } from "../../../src/gateway/tokens/own.ts";
import { runInside } from "../../support/command-line.ts";
import { call, gatewayBefore, testFolder, until } from "../../support/gateways.ts";
import type { Answer } from "../../support/gateways.ts";
import type { SimEngine } from "../../support/sim-engine.ts";
import { SimPublisher } from "../../support/sim-publisher.ts";
import { tokenizeBy, writeTokenizer } from "../../support/tokenizers.ts";

interface Known {
  engine: SimEngine;
  /** `tierkv gateway status`. */
  status(): Promise<string>;
  shown(): Promise<ShownTokenizer | undefined>;
  /** Prompts that became tokens since the last question, by whom. */
  made(): Promise<Record<string, number>>;
  complete(prompt: string): Promise<Answer>;
  chat(more: object): Promise<Answer>;
}

async function knowing(
  how: "alike" | "chatty" | "other",
  given: Partial<GatewayConfig> = {},
): Promise<Known> {
  const folder = writeTokenizer(join(testFolder(), "model"));
  const tokenizers = new Map([["m", folder]]);
  const publisher = await new SimPublisher({ blockSize: 16 }).start();
  onTestFinished(() => publisher.stop());
  const asked = { preset: "earliest-token", tokenizers, ...given } as const;
  const { engines, url, socket } = await gatewayBefore([["m"]], asked, [publisher]);
  const engine = engines[0]!;
  await tokenizeBy(engine, folder, how);
  const send = (path: string, body: object): Promise<Answer> =>
    call(url, path, {
      body: JSON.stringify({ model: "m", ...body }),
      headers: { "content-type": "application/json" },
    });
  let before: Record<string, number> = {};
  return {
    engine,
    async status() {
      const config = join(folder, "tierkv.toml");
      writeFileSync(config, `[gateway]\nsocket = "${socket}"\n`);
      return (await runInside(["--config", config, "gateway", "status"])).stdout;
    },
    async shown() {
      const { tokenizers: all } = (await askGateway(socket, "GET", "/status")) as {
        tokenizers: ShownTokenizer[];
      };
      return all[0];
    },
    async made() {
      const { text } = await call(url, "/metrics");
      const found = text.matchAll(/tierkv_gateway_tokenized_total\{by="(\w+)"\} (\d+)/g);
      const now: Record<string, number> = {};
      for (const [, by = "", count] of found) now[by] = Number(count);
      const since = Object.entries(now).map(([by, n]) => [by, n - (before[by] ?? 0)] as const);
      before = now;
      return Object.fromEntries(since.filter(([, n]) => n > 0));
    },
    complete: (prompt) => send("/v1/completions", { prompt }),
    chat: (more) => send("/v1/chat/completions", { messages: turns("hello"), ...more }),
  };
}

let texts = 0;
/** Another one each time, and long enough to be turned into tokens. */
const text = (): string => `${(texts += 1)} ${"word <|turn|>".repeat(60)}`;
const turns = (content: string): object[] => [{ role: "user", content: `${content} ${text()}` }];

/** The first prompt is the engine's, and has it compared. */
async function compared(known: Known): Promise<ShownTokenizer> {
  await known.complete(text());
  await until(async () => ((await known.shown())?.state ?? "asking") !== "asking");
  await known.made();
  return (await known.shown())!;
}

/** Ends the engine and starts another process of it; `meanwhile` changes what that one serves. */
async function restarted(known: Known, meanwhile: () => void | Promise<void>): Promise<void> {
  await known.engine.kill();
  await meanwhile();
  await until(async () => (await known.complete(text())).code === 503);
  await known.engine.start();
  await until(async () => (await known.complete(text())).code === 200);
}

test("tokens are made here once the engine made the same, of texts, chats and tools", async () => {
  const known = await knowing("alike");
  const first = await known.complete(text());
  expect(first.headers["x-tierkv-hit-tokens"]).toMatch(/^0\/\d+$/);
  expect(await known.made()).toEqual({ engine: 1 });
  await until(async () => (await known.shown())?.state === "agrees");
  expect(await known.shown()).toMatchObject({ model: "m", chats: true, tools: false });
  const asked = known.engine.tokenized;
  const prompt = text();
  const answer = await known.complete(prompt);
  const expected = await known.engine.tokenize(JSON.stringify({ prompt }));
  expect(answer.headers["x-tierkv-hit-tokens"]).toBe(`0/${expected.length}`);
  const messages = turns("hello");
  const chat = await known.chat({ messages });
  const rendered = await known.engine.tokenize(JSON.stringify({ messages }));
  expect(chat.headers["x-tierkv-hit-tokens"]).toBe(`0/${rendered.length}`);
  expect(await known.made()).toEqual({ gateway: 2 });
  expect(known.engine.tokenized).toBe(asked);
  // Of a prompt that came before, nobody is asked.
  await known.complete(prompt);
  expect(await known.made()).toEqual({});
});

test("what is not rendered here as the engine renders it, the engine is asked for", async () => {
  const known = await knowing("alike");
  expect((await compared(known)).state).toBe("agrees");
  const message = { role: "user", content: text() };
  const foreign: object[] = [
    { messages: [{ ...message, name: "x" }] },
    { messages: [{ ...message, role: "tool" }] },
    { messages: [{ ...message, content: `${text()}\u{feff}` }] },
    { chat_template: "{{ messages }}" },
    { chat_template_kwargs: { bos_token: "x" } },
    { chat_template_kwargs: { depth: 1 } },
    { continue_final_message: true, add_generation_prompt: false },
    { add_special_tokens: "yes" },
    // Its engine writes tools without the spaces that Python writes: that was compared, too.
    { tools: [{ type: "function", function: { name: "f", description: "", parameters: {} } }] },
  ];
  for (const more of foreign) {
    await known.chat(more);
    expect(await known.made(), JSON.stringify(more)).toEqual({ engine: 1 });
  }
  // `/tokenize` takes no such fields, and this engine has no route that does.
  for (const more of [{ reasoning_effort: "low" }, { documents: [{ text: "x" }] }]) {
    await known.chat(more);
    expect(await known.made(), JSON.stringify(more)).toEqual({ nobody: 1 });
  }
  for (const other of [`${text()}\u{d800}`, "x".repeat(GATEWAY_ENCODE_CHARS_MAX + 1)]) {
    await known.complete(other);
    expect(await known.made()).toEqual({ engine: 1 });
  }
  // Nothing of it would stand in the text.
  await known.chat({ chat_template_kwargs: { unused: "x".repeat(GATEWAY_ENCODE_CHARS_MAX) } });
  expect(await known.made()).toEqual({ engine: 1 });
  await known.chat({});
  expect(await known.made()).toEqual({ gateway: 1 });
});

test("an engine that makes other tokens is asked for them", async () => {
  const known = await knowing("other");
  expect(await compared(known)).toMatchObject({ state: "differs", chats: false });
  await known.complete(text());
  await known.chat({});
  expect(await known.made()).toEqual({ engine: 2 });
});

test("an engine that renders chats otherwise is asked for those alone", async () => {
  const known = await knowing("chatty");
  expect(await compared(known)).toMatchObject({ state: "agrees", chats: false });
  await known.complete(text());
  expect(await known.made()).toEqual({ gateway: 1 });
  await known.chat({});
  expect(await known.made()).toEqual({ engine: 1 });
});

test("an engine that was started anew is compared again", async () => {
  const known = await knowing("alike");
  const { folder } = await compared(known);
  await restarted(known, () => tokenizeBy(known.engine, folder, "other"));
  await until(async () => (await known.shown())?.state === "differs");
  expect(await known.status()).toContain(
    "one call a prompt, because the ids that the gateway makes",
  );
});

test("an engine that was started anew from other files is compared with these", async () => {
  const known = await knowing("alike");
  const { folder } = await compared(known);
  await restarted(known, async () => {
    writeTokenizer(folder, undefined, ["<|turn|>", "word"]);
    await tokenizeBy(known.engine, folder);
  });
  await until(async () => (await known.shown())?.state === "agrees");
  await known.made();
  const prompt = text();
  const expected = await known.engine.tokenize(JSON.stringify({ prompt }));
  const { headers } = await known.complete(prompt);
  expect(headers["x-tierkv-hit-tokens"]).toBe(`0/${expected.length}`);
  expect(await known.made()).toEqual({ gateway: 1 });
});

test("an engine that does not tell tokens is not believed to make the same", async () => {
  const known = await knowing("alike");
  known.engine.tokenize = () => [];
  await known.complete(text());
  await until(() => known.engine.tokenized >= 2);
  for (let more = 0; more < 20; more += 1) await known.complete(text());
  expect(await known.made()).toEqual({ nobody: 21 });
  expect((await known.shown())?.state).toBe("asking");
  // One question of the comparison: without an answer it ends.
  expect(known.engine.tokenized).toBe(22);
});

test("without time a prompt goes by load, whoever would make its tokens", async () => {
  const known = await knowing("alike", { tokenizeMs: 0 });
  await compared(known);
  const answer = await known.complete(text());
  expect([answer.code, answer.headers["x-tierkv-reason"]]).toEqual([200, "load"]);
  expect(await known.made()).toEqual({ nobody: 1 });
});

test("the folder that an engine serves from is taken where it can be read here", async () => {
  const known = await knowing("alike", { tokenizers: new Map() });
  await known.complete(text());
  expect(await known.shown()).toBeUndefined();
  const root = writeTokenizer(join(testFolder(), "root"));
  await restarted(known, () => {
    known.engine.root = root;
  });
  await until(async () => (await known.shown())?.state === "agrees");
  expect((await known.shown())?.folder).toBe(root);
});

test("an engine's folder that cannot be opened is tried again until it can be, and says why meanwhile", async () => {
  const known = await knowing("alike", { tokenizers: new Map() });
  const root = testFolder();
  writeFileSync(join(root, "tokenizer.json"), "{}");
  await restarted(known, () => {
    known.engine.root = root;
  });
  await until(async () => (await known.shown())?.state === "failed");
  const { folder, reason, chats } = (await known.shown())!;
  expect([folder, chats]).toEqual([root, false]);
  expect(reason).toContain(`${root}/tokenizer.json: `);
  expect(await known.status()).toContain(
    `asked of the engine, until its folder can be opened: ${reason}`,
  );
  writeTokenizer(root);
  await until(async () => {
    await known.complete(text());
    return (await known.shown())?.state === "agrees";
  });
  expect((await known.shown())?.reason).toBe("");
  await known.made();
  await known.complete(text());
  expect(await known.made()).toEqual({ gateway: 1 });
});

test("a folder that is of no use is told with the key, the model and what to do", async () => {
  const folder = testFolder();
  const tokenizers = new Map([["m", folder]]);
  await expect(gatewayBefore([["m"]], { tokenizers })).rejects.toThrow(
    `tokenizers = m=${folder}: ${folder}/tokenizer.json: No such file or directory`,
  );
  writeFileSync(join(folder, "tokenizer.json"), "{}");
  await expect(gatewayBefore([["m"]], { tokenizers })).rejects.toThrow("leave the model out");
});
