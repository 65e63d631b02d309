// Owns the proof that every form of the API goes where its prompt is held, by the tokens that the engine itself renders.
import { expect, test } from "vitest";
import { call, until } from "../../support/gateways.ts";
import type { Answer } from "../../support/gateways.ts";
import { renderingEngines } from "../../support/rendering-engines.ts";
import { tokensOf } from "../../support/sim-engine.ts";

const LONG = "a long system prompt. ".repeat(40);
const CALL = { id: "c", type: "function", function: { name: "f", arguments: '{"x":1.0}' } };
const CHAT = "/v1/chat/completions";

type Form = readonly [name: string, path: string, body: (last: string) => object];

const FORMS: readonly Form[] = [
  ["a chat of texts", CHAT, (last) => ({ messages: user(LONG, last) })],
  ["content parts", CHAT, (last) => ({ messages: [{ role: "user", content: parts(LONG, last) }] })],
  [
    "an assistant's tool call without content",
    CHAT,
    (last) => ({
      messages: [
        { role: "user", content: LONG },
        { role: "assistant", tool_calls: [CALL] },
        { role: "tool", tool_call_id: "c", content: last },
      ],
    }),
  ],
  ["reasoning effort", CHAT, (last) => ({ reasoning_effort: "high", messages: user(LONG, last) })],
  ["documents", CHAT, (last) => ({ documents: [{ text: LONG }], messages: user("q", last) })],
  ["the Messages API", "/v1/messages", (last) => ({ system: LONG, messages: user("q", last) })],
  ["the Responses API", "/v1/responses", (last) => ({ instructions: LONG, input: last })],
  ["one text in a list", "/v1/completions", (last) => ({ prompt: [LONG + last] })],
  ["token ids in a list", "/v1/completions", (last) => ({ prompt: [tokensOf(LONG + last)] })],
  ["an invocation", "/invocations", (last) => ({ messages: user(LONG, last) })],
  [
    "a truncation that cuts nothing",
    CHAT,
    (last) => ({ truncate_prompt_tokens: -1, messages: user(LONG, last) }),
  ],
  ["no model", CHAT, (last) => ({ model: null, messages: user(LONG, last) })],
];

const user = (...texts: readonly string[]): object[] =>
  texts.map((content) => ({ role: "user", content }));
const parts = (...texts: readonly string[]): object[] =>
  texts.map((text) => ({ type: "text", text }));

const ask = (url: string, path: string, body: object): Promise<Answer> =>
  call(url, path, {
    body: JSON.stringify({ model: "m", stream: true, ...body }),
    headers: { "content-type": "application/json" },
  });

/** Waits until the gateway has heard of all blocks of the engines. */
const untilIndexed = (
  url: string,
  publishers: Awaited<ReturnType<typeof renderingEngines>>["publishers"],
): Promise<void> =>
  until(async () => {
    for (const publisher of publishers) await publisher.publish([]);
    const { text } = await call(url, "/metrics");
    const blocks = [...text.matchAll(/indexed_blocks\{.*gpu.*\} (\d+)$/gm)].map(([, n]) =>
      Number(n),
    );
    return publishers.every((publisher, at) => publisher.blocks.size === blocks[at]);
  });

test.each(FORMS)("%s goes where it is held", async (_name, path, body) => {
  // By what is held alone: times of a busy machine decide nothing.
  const { url, publishers } = await renderingEngines(4, "prefix-weighted");
  const engineOf = ({ headers }: Answer): unknown =>
    headers["x-gateway-destination-endpoint-served"];
  const first = await ask(url, path, body("first question"));
  expect(first.code).toBe(200);
  await untilIndexed(url, publishers);
  for (let n = 0; n < 6; n += 1) {
    const again = await ask(url, path, body(`question ${n}`));
    expect(engineOf(again)).toBe(engineOf(first));
    const [hit = 0, tokens = 0] = String(again.headers["x-tierkv-hit-tokens"])
      .split("/")
      .map(Number);
    expect(hit).toBeGreaterThan(LONG.length / 2);
    expect(hit).toBeLessThan(tokens);
  }
});

const SCORES: readonly [path: string, more: object, isComputed: boolean][] = [
  ["/v1/completions", { prompt_logprobs: 1 }, true],
  ["/v1/completions", { prompt_logprobs: 0 }, true],
  ["/v1/completions", { echo: true, logprobs: 1 }, true],
  ["/v1/completions", { echo: true }, false],
  ["/v1/completions", { logprobs: 1 }, false],
  [CHAT, { prompt_logprobs: 0 }, true],
  [CHAT, { echo: true }, true],
  [CHAT, { logprobs: true, top_logprobs: 2 }, false],
  ["/invocations", { echo: true }, true],
  // It has no such field.
  ["/v1/messages", { prompt_logprobs: 1 }, false],
];

test.each(SCORES)("%s with %j reads cached blocks, or claims none", async (path, more, isNone) => {
  const { url, publishers } = await renderingEngines(1);
  const body = path === "/v1/completions" ? { prompt: LONG } : { messages: user(LONG) };
  await ask(url, path, body);
  await untilIndexed(url, publishers);
  const answer = await ask(url, path, { ...body, ...more });
  const [hit = 0] = String(answer.headers["x-tierkv-hit-tokens"]).split("/").map(Number);
  expect(hit > 0).toBe(!isNone);
});

test.each([404, 403])(
  "an engine without such a route (%i) is asked once, and its requests go by load",
  async (code) => {
    const { url, engines } = await renderingEngines(1);
    Object.assign(engines[0]!, { rendered: null, routeless: code });
    const body = { system: LONG, messages: user("q") };
    for (let n = 0; n < 3; n += 1) {
      const answer = await ask(url, "/v1/messages", body);
      expect([answer.code, answer.headers["x-tierkv-reason"]]).toEqual([200, "load"]);
    }
    expect(engines[0]!.refusedRenders).toBe(1);
  },
);

test("a prompt of unknown tokens counts by its size in the queue of its engine", async () => {
  const { url, engines } = await renderingEngines(2);
  for (const engine of engines) engine.rendered = null;
  let open: () => void = () => {};
  const gate = new Promise<void>((resolve) => (open = resolve));
  for (const engine of engines) engine.gate = gate;
  const answers = [0, 1, 2, 3].map((n) =>
    ask(url, "/v1/messages", { system: LONG.repeat(20), messages: user(String(n)) }),
  );
  await until(() => engines.reduce((sum, { asked }) => sum + asked.length, 0) === 4);
  expect(engines.map(({ asked }) => asked.length)).toEqual([2, 2]);
  open();
  for (const answer of await Promise.all(answers)) expect(answer.code).toBe(200);
});

test("a picture's own bytes are no text", async () => {
  const { textBytes } = await import("../../../src/gateway/front/body.ts");
  const base64 = "A".repeat(100_000);
  const picture = `data:image/png;base64,${base64}`;
  const given = [
    [{ type: "image_url", image_url: { url: picture } }, picture],
    [{ type: "input_image", image_url: picture }, picture],
    [{ type: "image", source: { type: "base64", media_type: "image/png", data: base64 } }, base64],
    [{ type: "tool_result", content: [{ type: "image", source: { data: base64 } }] }, base64],
    [{ type: "input_audio", input_audio: { data: base64, format: "wav" } }, base64],
    [{ type: "file", file: { file_data: base64 } }, base64],
    [{ type: "text", text: base64 }, ""],
    [{ type: "text", text: "data: yes", url: "https://a.example/" }, ""],
  ] as const;
  for (const [part, media] of given) {
    const fields = { messages: [{ role: "user", content: [part] }] };
    const body = Buffer.from(JSON.stringify(fields));
    expect(textBytes(body, fields, "application/json"), part.type).toBe(body.length - media.length);
  }
  const form = (head: string, content: string): string =>
    `--b\r\ncontent-disposition: form-data; ${head}\r\n\r\n${content}\r\n`;
  const sound = form('name="file"; filename="a.wav"', base64);
  const body = Buffer.from(`${sound}${form('name="model"', "m")}--b--\r\n`);
  expect(textBytes(body, null, "multipart/form-data; boundary=b")).toBe(body.length - 100_000);
});
