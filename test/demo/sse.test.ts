// Owns the proof that a server's event stream is read whole, however the network cuts it.
import { expect, test } from "vitest";
import { SseParser } from "../../src/demo/sse.ts";

const STREAM =
  'data: {"a":1}\n\n: a comment\r\ndata: {"b":2}\r\n\r\nevent: x\ndata: one\ndata: two\n\ndata: [DONE]\n\n';
const EVENTS = ['{"a":1}', '{"b":2}', "one\ntwo", "[DONE]"];

test("events come out whole, cut at every place", () => {
  for (let cut = 0; cut <= STREAM.length; cut += 1) {
    const parser = new SseParser();
    const events = [...parser.push(STREAM.slice(0, cut)), ...parser.push(STREAM.slice(cut))];
    expect(events).toEqual(EVENTS);
  }
});

test("one character at a time", () => {
  const parser = new SseParser();
  expect(STREAM.split("").flatMap((character) => parser.push(character))).toEqual(EVENTS);
});

test("an event without its empty line is not complete", () => {
  expect(new SseParser().push("data: half\n")).toEqual([]);
});
