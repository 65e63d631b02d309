// Owns the proof that the catalogue, its texts, its page and the door for unknown throws agree.
import { openSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { ERRORS, isTierkvError, TierkvError, toTierkvError } from "../../src/base/errors.ts";
import { renderErrorsPage } from "../support/errors-page.ts";

const SRC = fileURLToPath(new URL("../../src", import.meta.url));

test("docs/errors.md is current; renew it with `npx vitest run -c test/vitest.config.ts test/base/errors.test.ts -u`", async () => {
  await expect(renderErrorsPage()).toMatchFileSnapshot("../../docs/errors.md");
});

test("every code is used outside the catalogue", () => {
  const files = readdirSync(SRC, { recursive: true, encoding: "utf8" });
  const texts = files
    .filter((file) => file.endsWith(".ts"))
    .map((file) => readFileSync(join(SRC, file), "utf8"));
  const isUsed = (code: string): boolean => texts.some((text) => text.includes(`"${code}"`));
  expect(Object.keys(ERRORS).filter((code) => !isUsed(code))).toEqual([]);
});

test("texts are one line, begin small and end open, so that they can stand behind a name", () => {
  for (const [code, { template }] of Object.entries(ERRORS)) {
    expect(code).toMatch(/^[A-Z][A-Z0-9_]+$/);
    expect(template, code).toMatch(/^[a-z{][^\n]*[^.\n]$/);
  }
});

test("holes are filled from the details; the details stay for machines", () => {
  const error = new TierkvError("DEADLINE", { what: "a lookup", timeoutMs: 20 });
  expect(error.message).toBe("a lookup took longer than 20 ms");
  expect(error.details).toEqual({ what: "a lookup", timeoutMs: 20 });
  expect([error.exitCode, error.retryable, error.grpcStatus]).toEqual([
    1,
    true,
    "DEADLINE_EXCEEDED",
  ]);
});

test("a detail that looks like a hole is not filled again", () => {
  const error = new TierkvError("DEADLINE", { what: "{timeoutMs}", timeoutMs: 1 });
  expect(error.message).toBe("{timeoutMs} took longer than 1 ms");
});

test("our own errors pass the door as they are, also from another copy of the module", () => {
  const own = new TierkvError("CLOSED", { what: "it" });
  expect(toTierkvError(own)).toBe(own);
  const foreign = Object.assign(new Error("x"), { name: "TierkvError", code: "CLOSED" });
  expect(isTierkvError(foreign)).toBe(true);
  expect(
    isTierkvError(Object.assign(new Error("x"), { name: "TierkvError", code: "toString" })),
  ).toBe(false);
});

test.each([
  ["BAD_RECORD: header checksum", "BAD_RECORD", "header checksum"],
  ["NO_MEMORY: 3 bytes", "NO_MEMORY", "3 bytes"],
  ["BAD_ARGUMENT: a\nb", "BAD_ARGUMENT", "a b"],
  [
    "VAULT_DOWN: not a text of the native core",
    "INTERNAL",
    "VAULT_DOWN: not a text of the native core",
  ],
  ["just so", "INTERNAL", "just so"],
])("the native core's %j becomes %s", (text, code, message) => {
  const error = toTierkvError(new Error(text));
  expect([error.code, error.message]).toEqual([code, message]);
});

test("an error of the system keeps what, where and why", () => {
  const caught = ((): unknown => {
    try {
      return openSync("/no/such/file", "r");
    } catch (error) {
      return error;
    }
  })();
  const error = toTierkvError(caught);
  expect(error.code).toBe("SYSTEM");
  expect(error.message).toBe("ENOENT: no such file or directory, open '/no/such/file'");
});

test("an abort is a cancellation, or what it was aborted with", () => {
  const abort = new DOMException("x", "AbortError");
  expect(toTierkvError(abort).code).toBe("CANCELLED");
  const cause = new TierkvError("DEADLINE", { what: "w", timeoutMs: 1 });
  const wrapped = Object.assign(new Error("aborted", { cause }), { name: "AbortError" });
  expect(toTierkvError(wrapped)).toBe(cause);
});

test.each([[undefined], [null], ["text"], [7], [{ a: 1 }], [Object.create(null)], [Symbol("s")]])(
  "anything else thrown (%j) is a bug of ours",
  (thrown) => {
    expect(toTierkvError(thrown).code).toBe("INTERNAL");
  },
);
