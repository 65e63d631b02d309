// Owns the proof that `tierkv explain` names the first token at which a prompt stops matching an earlier one, with text and cause.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import {
  EXPLAIN_MAX,
  FRAME_BYTES_MAX,
  UNASKED_ROWS_MAX,
} from "../../../src/base/limits/general.ts";
import { newSidecarCounters } from "../../../src/base/metrics.ts";
import { tokenizerEncode, tokenizerOpen } from "../../../src/base/native.ts";
import { causeOf, describeDivergence, roleOf } from "../../../src/control/divergence.ts";
import type { DivergenceText } from "../../../src/control/divergence.ts";
import type { Divergence } from "../../../src/sidecar/socket/divergence.ts";
import { encodeFrame } from "../../../src/sidecar/socket/frames.ts";
import { Decisions } from "../../../src/sidecar/trace/decisions.ts";
import { Ledger } from "../../../src/sidecar/trace/ledger.ts";
import { runInside } from "../../support/command-line.ts";
import { FakeEngine } from "../../support/shim-client.ts";
import { openSidecar, testDirectory } from "../../support/sidecars.ts";
import { logger, until } from "../../support/vaults.ts";

const FOUND: Divergence = {
  what: "tokens",
  at: 301,
  tokens: 2352,
  earlier: "cmpl-1",
  isAnswer: false,
  gone: 2,
  come: 1,
  same: 2000,
  isMoved: false,
  tokenizer: "",
  head: [],
  before: [],
  was: [],
  now: [],
};

const TEXT: DivergenceText = {
  head: "<|im_end|>\n<|im_start|>system\nYou are",
  before: "You are a helpful assistant. Be short. Current time: 14:05:",
  was: "17. Answer in",
  now: "22. Answer in",
  gone: "17",
  come: "22",
};

test("a changed time in the system prompt is shown with its place, its text and what is equal again", () => {
  expect(describeDivergence(FOUND, TEXT)).toEqual([
    [
      "differs",
      "from cmpl-1 at token 301 of 2352 (system message): 2 tokens replaced by 1, and the next 2000 are equal again",
    ],
    [
      "text",
      'after "You are a helpful assistant. Be short. Current time: 14:05:" was "17. Answer in", now "22. Answer in"',
    ],
    ["cause", expect.stringContaining("a date or time that changes")],
  ]);
});

test("a prompt that differs from its first token on has no text before", () => {
  const [, text] = describeDivergence({ ...FOUND, at: 0, isMoved: false }, { ...TEXT, before: "" });
  expect(text).toEqual(["text", 'at its start was "17. Answer in", now "22. Answer in"']);
});

test("without a tokenizer the place is named alone, with the usual causes", () => {
  const [differs, cause, ...others] = describeDivergence(FOUND, null);
  expect(differs?.[1]).toBe(
    "from cmpl-1 at token 301 of 2352: 2 tokens replaced by 1, and the next 2000 are equal again",
  );
  expect(cause?.[1]).toMatch(/^usual causes: .*template that rewrites earlier turns$/);
  expect(others).toEqual([]);
});

test("prompts that have only a template in common are not called alike", () => {
  expect(describeDivergence({ ...FOUND, at: 4, gone: 0, come: 0, same: 0 }, TEXT)).toEqual([
    ["differs", "no earlier prompt begins like it (nearest: cmpl-1, 4 equal at the start)"],
  ]);
});

test("a prompt that ends within the earlier one's text has no cause to look for", () => {
  const ends = { ...FOUND, at: 2351, now: [220], gone: 0, come: 0, same: 0 };
  const text = { ...TEXT, was: " love and", now: " " };
  expect(describeDivergence(ends, text).map(([label]) => label)).toEqual(["differs", "text"]);
  expect(causeOf(ends, text)).toBe("shorter");
  // One that goes on, or ends in another word.
  expect(causeOf({ ...ends, tokens: 2353 }, text)).not.toBe("shorter");
  expect(causeOf(ends, { ...text, now: " a" })).not.toBe("shorter");
});

const changed = (
  before: string,
  gone: string,
  come: string,
  head = "<|user|>\n",
): DivergenceText => ({
  head,
  before,
  was: `${gone} and more`,
  now: `${come} and more`,
  gone,
  come,
});

test.each<[cause: string, Partial<Divergence>, DivergenceText]>([
  ["time", {}, changed("Today is Monday, Nov ", "28", "29")],
  ["time", {}, changed("date: 2026-11-", "28", "29")],
  ["time", { gone: 0 }, changed("", "", "Current time: 2026-11-30 17:10:01\n")],
  ["unknown", { gone: 0 }, changed("You have ", "", "17 or so ")],
  ["id", {}, changed("request_id=", "f3a9c2d41b77", "0b64e1a98c3d")],
  [
    "id",
    {},
    changed(
      "session ",
      "1b4e28ba-2fa1-11d2-883f-b9a761bde3fb",
      "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    ),
  ],
  ["number", {}, changed("You have ", "17", "18")],
  ["billing", {}, changed("x-anthropic-billing-header: cc_version=2.1; cch=", "a1b", "c2d")],
  ["order", { isMoved: true }, changed("tools: ", "read", "write")],
  ["answer", { isAnswer: true }, changed("assistant\n", "<think>", "The")],
  [
    "system",
    {},
    changed("You are ", "a poet", "a clerk", "<|start_header_id|>system<|end_header_id|>"),
  ],
  ["unknown", { gone: 0, come: 0, same: 0 }, changed("What is ", "love", "a vault")],
  ["end", { at: 2330, gone: 0, come: 0, same: 0 }, changed("What is ", "love", "a vault")],
  ["unknown", { at: 2100, gone: 0, come: 0, same: 0 }, changed("What is ", "love", "a vault")],
  ["salt", { what: "salt" }, changed("", "", "")],
  ["picture", { what: "picture" }, changed("", "", "")],
])("the cause %s is told by the text", (cause, more, text) => {
  expect(causeOf({ ...FOUND, ...more }, text)).toBe(cause);
});

test("a number that both prompts have before the difference is no cause", () => {
  const text = changed(
    "On 2026-11-28 somebody asked what love is, and I said it is ",
    "bliss",
    "work",
  );
  expect(causeOf(FOUND, text)).toBe("unknown");
});

test.each([
  ["<|im_end|>\n<|im_start|>user\nWhat", "user"],
  ["<|start_header_id|>system<|end_header_id|>\n\nuser: x", "system"],
  ["<end_of_turn>\n<start_of_turn>model\n", "assistant"],
  ["<｜User｜>What is", "user"],
  ["<|end|><|tool|>", "tool"],
  ["What the user said", null],
])("the role of %j", (head, role) => {
  expect(roleOf(head)).toBe(role);
});

const uint32 = (ids: Iterable<number>): Buffer => Buffer.from(Uint32Array.from(ids).buffer);

test("what an engine reports is shown with the text that its tokenizer makes of the ids", async () => {
  const folder = join(import.meta.dirname, "../../../bench/fidelity/model");
  const tokenizer = await tokenizerOpen(folder);
  const encode = async (text: string): Promise<Uint32Array> =>
    await tokenizerEncode(tokenizer, text, false);
  const before = await encode("the clock says 14:05:");
  const was = await encode("17 and all is well");
  const now = await encode("22 and all is well");
  const sidecar = await openSidecar();
  const engine = await FakeEngine.start(sidecar.socketPath);
  const row = {
    req: "cmpl-2",
    what: "tokens",
    at: 40,
    tokens: 90,
    earlier: "cmpl-1",
    answer: 0,
    gone: 0,
    come: 0,
    same: 0,
    moved: 0,
    head: uint32([]),
    before: uint32(before),
    was: uint32(was),
    now: uint32(now),
  };
  engine.scheduler.send({
    t: "counts",
    counters: { said: 1 },
    unasked: [["cmpl-2", "not_worth_asking", 90, 0]],
    divergences: [row, { ...row, req: "unknown to this sidecar" }],
    tokenizer: folder,
  });
  await until(() => sidecar.counters.get("shim_said") === 1, "the counts");
  const config = join(testDirectory(), "tierkv.toml");
  writeFileSync(config, `[sidecar]\nsocket = "${sidecar.socketPath}"\n`);
  const { stdout } = await runInside(["explain", "cmpl-2", "--config", config]);
  expect(stdout).toContain("differs: from cmpl-1 at token 40 of 90\n");
  expect(stdout).toContain(
    'text:    after "the clock says 14:05:" was "17 and all is well", now "22 and all is well"',
  );
  const json = await runInside(["explain", "cmpl-2", "--json", "--config", config]);
  const { requests } = JSON.parse(json.stdout) as { requests: { divergence: object }[] };
  expect(requests[0]?.divergence).toMatchObject({
    at: 40,
    cause: "time",
    text: { was: "17 and all is well" },
  });
  engine.close();
});

test("a report with ids cut in the middle is refused", async () => {
  const sidecar = await openSidecar();
  const engine = await FakeEngine.start(sidecar.socketPath);
  engine.scheduler.send({
    t: "counts",
    counters: {},
    divergences: [
      {
        ...FOUND,
        req: "r",
        answer: 0,
        moved: 0,
        head: Buffer.alloc(3),
        before: Buffer.alloc(0),
        was: Buffer.alloc(0),
        now: Buffer.alloc(0),
      },
    ],
    tokenizer: "",
  });
  await until(() => sidecar.counters.get("frames_refused") === 1, "the refusal");
  engine.close();
});

test("as many divergences as may be shown fit into one frame", () => {
  const decisions = new Decisions(newSidecarCounters(), logger, new Ledger());
  const ids = Array.from({ length: UNASKED_ROWS_MAX }, () => 2 ** 32 - 1);
  for (let count = 0; count < EXPLAIN_MAX; count += 1) {
    const req = `r${count}`;
    decisions.unasked("engine", {
      req,
      why: "own_cache",
      tokens: 1,
      ownTokens: 1,
      traceparent: "",
    });
    const divergence = { ...FOUND, head: ids, before: ids, was: ids, now: ids };
    decisions.diverged("engine", { req, divergence });
  }
  const accounts = decisions.find("", EXPLAIN_MAX);
  expect(accounts.every(({ divergence }) => divergence !== null)).toBe(true);
  expect(encodeFrame({ accounts }).length).toBeLessThan(FRAME_BYTES_MAX);
});
