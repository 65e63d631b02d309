// Owns the proof that a chat which would hold up all others while it is rendered here is left to its engine.
import { expect, test } from "vitest";
import {
  GATEWAY_CHAT_MESSAGES_MAX,
  GATEWAY_CHAT_VALUES_MAX,
} from "../../../src/base/limits/gateway.ts";
import { chatOf } from "../../../src/gateway/tokens/chat.ts";

const MESSAGES = [{ role: "user", content: "" }];
const many = <T>(count: number, value: T): T[] => Array.from({ length: count }, () => value);
const toolOf = (parameters: object): object => ({
  type: "function",
  function: { name: "f", description: "", parameters },
});
/** Of such a tool without parameters: its function, name, description and the map of parameters. */
const TOOL_VALUES = 4;

test.each([
  [
    "messages",
    (count: number) => ({ messages: many(count, MESSAGES[0]) }),
    GATEWAY_CHAT_MESSAGES_MAX,
  ],
  [
    "tools",
    (count: number) => ({ tools: many(count, toolOf({})) }),
    GATEWAY_CHAT_VALUES_MAX / TOOL_VALUES,
  ],
  [
    "values in one tool",
    (count: number) => ({ tools: [toolOf({ all: many(count - TOOL_VALUES - 1, true) })] }),
    GATEWAY_CHAT_VALUES_MAX,
  ],
  [
    "arguments of the template",
    (count: number) => ({
      chat_template_kwargs: Object.fromEntries(many(count, true).map((is, at) => [`is_${at}`, is])),
    }),
    GATEWAY_CHAT_VALUES_MAX,
  ],
])("as many %s as there may be are rendered here, and no more", (_what, bodyOf, most) => {
  expect(chatOf({ messages: MESSAGES, ...bodyOf(most) })).not.toBeNull();
  expect(chatOf({ messages: MESSAGES, ...bodyOf(most + 1) })).toBeNull();
});

test("a tool that is nested too deep, or has a number anywhere, as a name or a value, is the engine's", () => {
  let deep: object = {};
  for (let depth = 0; depth < 40; depth += 1) deep = { deep };
  for (const parameters of [deep, { a: [{ b: 1 }] }, { b: "", 1: "" }]) {
    expect(chatOf({ messages: MESSAGES, tools: [toolOf(parameters)] })).toBeNull();
  }
  expect(chatOf({ messages: MESSAGES, tools: [toolOf({ a: [{ b: "1" }] })] })).not.toBeNull();
});
