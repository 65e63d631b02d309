// Owns the proof of the token file: accepted lines, two tokens during a change, and harmless failures.
import { chmodSync, renameSync, writeFileSync } from "node:fs";
import { expect, test, vi } from "vitest";
import { TOKEN_FILE_POLL_MS } from "../../../src/base/limits/access.ts";
import { parseTokens, TokenFile } from "../../../src/vault/access/tokens.ts";
import { secretFile } from "../../support/closed-vaults.ts";
import { logger } from "../../support/vaults.ts";

const [OLD, NEW] = ["o".repeat(32), "n".repeat(32)];

test("lines of role and token; empty ones and comments say nothing", () => {
  const text = `# two\n\nread:${OLD}\n  admin:${NEW}:x  \r\n`;
  expect(parseTokens(text, "f")).toEqual([
    { role: "read", token: OLD },
    { role: "admin", token: `${NEW}:x` },
  ]);
});

test.each<[name: string, text: string, says: string]>([
  ["no role", `${OLD}\n`, "f:1: no role stands before the token"],
  ["another role", `# a\nroot:${OLD}\n`, "f:2: no role stands before the token"],
  ["a short token", "read:abc\n", "f:1: a token of 3 characters: it must have 32 to 512"],
  ["a long token", `read:${"a".repeat(513)}`, "f:1: a token of 513 characters"],
  ["a space in it", `read:${OLD} x`, "f:1: a token of other characters"],
  ["too many", `read:${OLD}\n`.repeat(257), "257 tokens: the limit is 256"],
])("%s is refused with its line, never with the token", (_name, text, says) => {
  const refused = (): unknown => parseTokens(text, "f");
  expect(refused).toThrow(says);
  expect(refused).not.toThrow(OLD);
});

test("a token opens for its role; the greatest of two lines holds; anything else opens nothing", () => {
  const file = new TokenFile(secretFile(`read:${OLD}\nwrite:${NEW}\nread:${NEW}\n`), logger);
  expect(file.roleOf(OLD)).toBe("read");
  expect(file.roleOf(NEW)).toBe("write");
  for (const wrong of ["", "o", OLD.slice(1), `${OLD}o`, "x".repeat(32), "read", `read:${OLD}`])
    expect(file.roleOf(wrong)).toBeNull();
});

test("two hold while one is changed; a file that became unusable changes nothing", () => {
  const now = vi.spyOn(performance, "now");
  let ms = 1000;
  now.mockImplementation(() => ms);
  const path = secretFile(`write:${OLD}\n`);
  const file = new TokenFile(path, logger);
  const rewrite = (text: string, mode = 0o600): void => {
    writeFileSync(`${path}.new`, text, { mode });
    chmodSync(`${path}.new`, mode);
    renameSync(`${path}.new`, path);
    ms += TOKEN_FILE_POLL_MS;
  };
  const opens = (): boolean[] => [OLD, NEW].map((token) => file.roleOf(token) !== null);
  expect(opens()).toEqual([true, false]);
  rewrite(`write:${OLD}\nwrite:${NEW}\n`);
  expect(opens()).toEqual([true, true]);
  rewrite(`write:${NEW}\n`);
  expect(opens()).toEqual([false, true]);
  rewrite("nonsense\n");
  expect(opens()).toEqual([false, true]);
  rewrite(`write:${OLD}\n`, 0o644);
  expect(opens()).toEqual([false, true]);
  rewrite("# nobody\n");
  expect(opens()).toEqual([false, true]);
  rewrite(`write:${OLD}\n`);
  expect(opens()).toEqual([true, false]);
  now.mockRestore();
});

test.each<[name: string, text: string, mode: number, says: string]>([
  [
    "that others may read",
    `read:${OLD}\n`,
    0o640,
    "it has mode 640, so others may read it; run `chmod 600",
  ],
  ["without a token", "# none\n", 0o600, "it holds no token"],
])("a file %s ends the start", (_name, text, mode, says) => {
  const path = secretFile(text);
  chmodSync(path, mode);
  expect(() => new TokenFile(path, logger)).toThrow(says);
});

test("a file that is not there is named, with the key to correct", () => {
  expect(() => new TokenFile("/no/such/file", logger)).toThrow(
    /^\/no\/such\/file: it cannot be read.*\[vault\] tokens$/,
  );
});
