// Owns the proof that fields which change a prompt's tokens reach whoever makes them, or leave the tokens unknown.
import { expect, test } from "vitest";
import { promptOf } from "../../../src/gateway/tokens/prompt.ts";

const CHAT = "/v1/chat/completions";
const MESSAGES = [{ role: "user", content: "hello" }];
const IDS = [5, 6, 7];

/** The path at which the tokens are asked for, and the question. */
function question(path: string, more: object): [path: string, body: object] {
  const asked = promptOf(path, { model: "m", messages: MESSAGES, ...more })?.question;
  return [asked?.path ?? "", JSON.parse(asked?.body ?? "{}") as object];
}

test.each([CHAT, "/v1/messages", "/v1/responses"])(
  "ids that %s forwards are what the engine computes, so it is asked with them",
  (path) => {
    const kv_transfer_params = { prompt_token_ids: IDS, tierkv: { report: true } };
    const [at, body] = question(path, { kv_transfer_params });
    expect(at).toBe(`${path}/render`);
    expect(body).toMatchObject({ kv_transfer_params: { prompt_token_ids: IDS } });
    expect(JSON.stringify(body)).not.toContain("tierkv");
  },
);

test("other parameters of a transfer change no token", () => {
  const plain = question(CHAT, {});
  expect(plain[0]).toBe("/tokenize");
  for (const params of [null, {}, { tierkv: { report: true } }, { prompt_token_ids: null }]) {
    expect(question(CHAT, { kv_transfer_params: params })).toEqual(plain);
  }
});

test.each([{ suffix: "}" }, { prompt_embeds: "AAAA" }, { truncate_prompt_tokens: 4 }])(
  "a completion with %j has unknown tokens",
  (more) => {
    const [[name]] = Object.entries(more) as [[string, unknown]];
    const asked = (fields: object): unknown =>
      promptOf("/v1/completions", { model: "m", prompt: "a {", ...fields });
    expect(asked(more)).toBeNull();
    if (name !== "truncate_prompt_tokens") expect(asked({ [name]: null })).not.toBeNull();
  },
);

test("the engine renders a chat whose tool_choice is not what it is where it is absent", () => {
  const tools = [{ type: "function", function: { name: "look" } }];
  const at = (more: object): string => question(CHAT, more)[0];
  expect(at({ tools, tool_choice: "auto" })).toBe("/tokenize");
  for (const tool_choice of ["none", "required", { type: "function", function: { name: "look" } }])
    expect(at({ tools, tool_choice })).toBe(`${CHAT}/render`);
  for (const none of [{}, { tools: [] }])
    expect(at({ ...none, tool_choice: "auto" })).toBe(`${CHAT}/render`);
});
