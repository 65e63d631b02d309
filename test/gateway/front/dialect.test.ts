// Owns the proof that clients' own SDKs read the gateway's errors: refusals, and streams that an engine breaks off.
import Anthropic, { AuthenticationError, InternalServerError } from "@anthropic-ai/sdk";
import OpenAI, { APIError as OpenAiError } from "openai";
import { expect, test } from "vitest";
import { gatewayBefore, keyFile } from "../../support/gateways.ts";
import type { Scene } from "../../support/gateways.ts";
import type { Fault } from "../../support/sim-engine.ts";

const MESSAGES = [{ role: "user" as const, content: "hello" }];

const named = (type: string, fields: object): string =>
  `event: ${type}\ndata: ${JSON.stringify({ type, ...fields })}\n\n`;

/** A whole answer of the Messages API. */
const ANTHROPIC_EVENTS = [
  named("message_start", {
    message: { id: "m", type: "message", role: "assistant", model: "m", content: [], usage: {} },
  }),
  named("content_block_start", { index: 0, content_block: { type: "text", text: "" } }),
  named("content_block_delta", { index: 0, delta: { type: "text_delta", text: "half" } }),
  named("content_block_stop", { index: 0 }),
  named("message_delta", { delta: { stop_reason: "end_turn" }, usage: { output_tokens: 1 } }),
  named("message_stop", {}),
];

const RESPONSE_EVENTS = [
  named("response.created", { sequence_number: 0, response: { id: "r" } }),
  named("response.output_text.delta", { sequence_number: 1, item_id: "i", delta: "half" }),
  named("response.completed", { sequence_number: 2, response: { id: "r" } }),
];

const CHAT_EVENTS = ["one ", "two ", "three"].map(
  (content) =>
    `data: ${JSON.stringify({ id: "c", choices: [{ index: 0, delta: { content } }] })}\n\n`,
);

async function gatewayWith(script: readonly string[], fault: Fault): Promise<Scene> {
  const scene = await gatewayBefore([["m"]]);
  Object.assign(scene.engines[0]!, { script, fault });
  return scene;
}

const anthropicAt = (url: string, apiKey = "any"): Anthropic =>
  new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });

const openaiAt = (url: string, apiKey = "any"): OpenAI =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });

const asked = { model: "m", max_tokens: 8, messages: MESSAGES };

/** Reads a stream to its end. */
async function all(stream: AsyncIterable<unknown>): Promise<number> {
  const events: unknown[] = [];
  for await (const event of stream) events.push(event);
  return events.length;
}

test("a whole stream of the Messages API has its end", async () => {
  const { url } = await gatewayWith(ANTHROPIC_EVENTS, "none");
  const message = await anthropicAt(url).messages.stream(asked).finalMessage();
  expect(message.stop_reason).toBe("end_turn");
});

test("a broken stream of the Messages API is an error to the anthropic SDK", async () => {
  const { url } = await gatewayWith(ANTHROPIC_EVENTS, "break-mid-stream");
  await expect(anthropicAt(url).messages.stream(asked).finalMessage()).rejects.toThrow(
    "the engine broke off in the middle of its answer",
  );
});

test("a broken stream of the Responses API is an error to the openai SDK", async () => {
  const { url } = await gatewayWith(RESPONSE_EVENTS, "break-mid-stream");
  const stream = await openaiAt(url).responses.create({ model: "m", input: "x", stream: true });
  await expect(all(stream)).rejects.toBeInstanceOf(OpenAiError);
});

test("a broken stream of a chat is an error to the openai SDK, a whole one is not", async () => {
  const { url, engines } = await gatewayWith(CHAT_EVENTS, "break-mid-stream");
  const chat = { model: "m", messages: MESSAGES, stream: true } as const;
  const stream = await openaiAt(url).chat.completions.create(chat);
  await expect(all(stream)).rejects.toThrow("the engine broke off in the middle of its answer");
  engines[0]!.fault = "none";
  expect(await all(await openaiAt(url).chat.completions.create(chat))).toBe(CHAT_EVENTS.length);
});

test("an unknown model and an engine that is down have each SDK's error classes", async () => {
  const { url, engines } = await gatewayWith(CHAT_EVENTS, "none");
  const other = { ...asked, model: "none" };
  await expect(anthropicAt(url).messages.create(other)).rejects.toMatchObject({
    status: 404,
    error: { type: "error", error: { type: "not_found_error" } },
  });
  await expect(openaiAt(url).chat.completions.create(other)).rejects.toMatchObject({
    status: 404,
    type: "NotFoundError",
    param: "model",
  });
  engines[0]!.fault = "reset";
  await expect(anthropicAt(url).messages.create(asked)).rejects.toBeInstanceOf(InternalServerError);
});

test("a key comes as x-api-key or as a bearer token, and reaches no engine", async () => {
  const scene = await gatewayBefore([["m"]], { keys: keyFile("a secret") });
  const { url } = scene;
  const [engine] = scene.engines;
  engine!.script = ANTHROPIC_EVENTS;
  await anthropicAt(url, "secret").messages.stream(asked).finalMessage();
  await openaiAt(url, "secret").chat.completions.create(asked);
  for (const { headers } of engine!.asked) {
    expect(headers["x-api-key"]).toBeUndefined();
    expect(headers.authorization).toBeUndefined();
  }
  expect(engine!.asked).toHaveLength(2);
  await expect(anthropicAt(url, "wrong").messages.create(asked)).rejects.toBeInstanceOf(
    AuthenticationError,
  );
});
