// Owns the proof that any body is read or refused, that a tenant's salt is in whatever goes on, and that nothing else of it is changed.
import { createHash } from "node:crypto";
import fc from "fast-check";
import { expect, test } from "vitest";
import { Allowance, Visit } from "../../../src/gateway/front/allowance.ts";
import { readingOf } from "../../../src/gateway/front/reading.ts";
import type { Holder } from "../../../src/gateway/front/reading.ts";
import type { Asked } from "../../../src/gateway/score/router.ts";
import { promptOf } from "../../../src/gateway/tokens/prompt.ts";
import { bytes, damage, meet } from "../../faults/lib/cases.ts";

const CASES = process.env["TIERKV_TEST_LONG"] === "on" ? 1_000_000 : 4000;
const LONG_MS = 1_200_000;
const PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"];
const TYPES = ["application/json", "text/plain", "multipart/form-data; boundary=x", undefined];

const odd = fc.oneof(
  fc.jsonValue({ maxDepth: 3 }),
  fc.constantFrom(-1, 1e308, "7", null, { toString: 0 }),
);
const messages = fc.array(fc.record({ role: fc.constant("user"), content: odd }), { maxLength: 3 });
/** What a client sends, with fields of other kinds than they should have. */
const body = fc
  .record(
    {
      model: fc.oneof(fc.constant("m"), odd),
      prompt: fc.oneof(fc.array(fc.nat(200_000), { maxLength: 40 }), fc.string(), odd),
      messages: fc.oneof(messages, odd),
      cache_salt: fc.oneof(fc.constantFrom("", "acme", "acme:x", ":"), odd),
      max_tokens: odd,
      n: odd,
      user: odd,
      __proto__: odd,
    },
    { requiredKeys: [] },
  )
  .map((fields) => Buffer.from(JSON.stringify(fields)));
const sent = fc.oneof(
  { weight: 4, arbitrary: body },
  { weight: 2, arbitrary: fc.tuple(body, damage).map(([good, how]) => how(good)) },
  { weight: 1, arbitrary: bytes(200) },
);
const request = fc.record({
  sent,
  path: fc.constantFrom(...PATHS),
  type: fc.constantFrom(...TYPES),
  tenant: fc.constantFrom("acme", null),
});

function parsed(text: Buffer): unknown {
  try {
    return JSON.parse(text.toString("utf8"));
  } catch {
    return undefined;
  }
}

const isFields = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** Numbers beyond what JavaScript counts to are not told apart here, neither by the gateway. */
const restOf = (value: unknown): unknown =>
  isFields(value) ? JSON.stringify({ ...value, cache_salt: undefined }) : value;

/** The salt of what is written, with and without a tenant. */
function expectSalt(before: unknown, after: unknown, tenant: string | null, isForm: boolean): void {
  const salt = isFields(after) ? after["cache_salt"] : undefined;
  if (tenant !== null) {
    expect(salt).toMatch(/^acme(:|$)/);
    return;
  }
  const own = isFields(before) ? before["cache_salt"] : undefined;
  if (typeof own !== "string") return;
  // Engines take no JSON from a form. Of an empty salt nothing is left.
  const hashed = createHash("sha256").update(own).digest("base64url");
  expect(salt ?? "").toBe(own === "" || isForm ? own : `:${hashed}`);
}

/** What else is made of a body. */
function isPrompt({ path, body: asked }: Asked, size: number): boolean {
  const visit = new Visit(new Allowance({ requests: null, tokens: 1000, concurrent: null }));
  visit.spend(asked, size);
  expect(Number(visit.headers()["x-ratelimit-remaining-tokens"])).toBeGreaterThanOrEqual(0);
  const prompt = promptOf(path, asked);
  for (const token of prompt?.tokens ?? []) expect(Number.isInteger(token)).toBe(true);
  return prompt !== null;
}

test(
  "F103 any body is read or refused; with a tenant its salt is there, and all else as it came",
  async () => {
    const seen = { refused: 0, salted: 0, prompts: 0 };
    await meet(CASES, request, [], ({ sent: given, path, type, tenant }) => {
      const holder: Holder = { name: "a", tenant, allowance: null };
      const reading = readingOf(given, path, { "content-type": type }, holder);
      if (reading === null) {
        seen.refused += 1;
        return;
      }
      const [before, after] = [parsed(given), parsed(reading.bytes)];
      if (given.length > 0)
        expectSalt(before, after, tenant, type?.startsWith("multipart") === true);
      seen.salted += Number(tenant !== null && given.length > 0);
      expect(restOf(after)).toEqual(restOf(before));
      seen.prompts += Number(isPrompt(reading.asked, given.length));
    });
    expect(Math.min(...Object.values(seen))).toBeGreaterThan(0);
  },
  LONG_MS,
);
