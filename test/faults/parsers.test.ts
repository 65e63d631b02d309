// Owns the proof that no text makes a parser fail with a foreign error, or change what it must keep.
// @module-tag nightly
import { createHash } from "node:crypto";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { toTierkvError } from "../../src/base/errors.ts";
import { decodeJoinCode, encodeJoinCode } from "../../src/cli/join/join-code.ts";
import { NO_FILE, checkConfig } from "../../src/config/check.ts";
import { setText } from "../../src/config/edit.ts";
import { parseTokens } from "../../src/vault/access/tokens.ts";
import { bytes, edited, meet } from "./lib/cases.ts";

const TEST_MS_MAX = 240_000;
const TOML =
  '# mine\n[cluster]\nrole = "inference"\nkv_cold = "h:1" # c\n[vault]\nmax_bytes = "24GiB"\n';
const TOML_PIECES = [
  "[",
  "]",
  "=",
  '"',
  "'",
  "\n",
  "#",
  "{",
  "}",
  ",",
  "role",
  "1e9",
  "true",
].concat(["\u0000", '"""', "[cluster]\n", "kv_cold", "cluster.", "\r\n", "\\"]);

describe("F10 texts meet their parsers", { timeout: TEST_MS_MAX }, () => {
  test("F10 join codes whose checksum holds: 20,000 cases", async () => {
    const ascii = fc
      .string({ unit: "binary-ascii", maxLength: 60 })
      .map((text) => Buffer.from(text));
    const address = fc.constantFrom("\x03a:1", "\x09[::1]:500", "\x05a:1b:", "\x00", "\xffa:1");
    const bodies = fc.oneof(
      bytes(120),
      fc
        .tuple(address, bytes(36), ascii)
        .map(([place, print, token]) =>
          Buffer.concat([Buffer.from(place, "latin1"), print, token]),
        ),
    );
    const taken = await meet(20_000, bodies, ["JOIN_CODE"], (body) => {
      const sum = createHash("sha256").update(body).digest().subarray(0, 4);
      const code = `tkv1.${Buffer.concat([body, sum]).toString("base64url")}`;
      const found = decodeJoinCode(code);
      expect(found.fingerprint).toHaveLength(32);
      expect(found.secret).toMatch(/^[\x21-\x7e]+$/);
      // Only printable addresses round-trip.
      if (/^[ -~]+$/.test(found.address)) expect(encodeJoinCode(found)).toBe(code);
    });
    expect(taken).toBeGreaterThan(0);
  });

  test("F10 token files: 20,000 cases", async () => {
    const token = fc.oneof(
      fc.stringMatching(/^[\x21-\x7e]{32,40}$/),
      fc.string({ unit: "binary-ascii", maxLength: 60 }),
      fc.string({ unit: "binary", maxLength: 40 }),
    );
    const role = fc.constantFrom("read:", "write:", "admin:", "root:", "", ":", "#", " read:");
    const files = fc.array(fc.tuple(role, token), { maxLength: 4 });
    const taken = await meet(20_000, files, ["CREDENTIALS"], (lines) => {
      const text = lines.map((line) => line.join("")).join("\n");
      try {
        const tokens = parseTokens(text, "tokens");
        const again = tokens.map(({ role: of, token: its }) => `${of}:${its}`).join("\n");
        expect(parseTokens(again, "tokens")).toEqual(tokens);
      } catch (error) {
        const { message } = toTierkvError(error);
        const secrets = lines.map(([, secret]) => secret.trim()).filter((of) => of.length > 15);
        for (const secret of secrets) expect(message).not.toContain(secret);
        throw error;
      }
    });
    expect(taken).toBeGreaterThan(0);
  });

  test("F10 configuration files: 30,000 cases", async () => {
    // Faults of a file are returned as a list, never thrown.
    const files = edited(TOML, TOML_PIECES, 6);
    await meet(30_000, files, [], (text) => checkConfig(text, NO_FILE, {}));
  });

  test("F10 edits of configuration files: 20,000 cases", async () => {
    let done = 0;
    const files = fc.tuple(edited(TOML, TOML_PIECES, 3), fc.string({ maxLength: 12 }));
    await meet(20_000, files, [], ([text, instead]) => {
      const after = setText(text, "cluster", "kv_cold", instead);
      if (after === null) return;
      done += 1;
      expect(missing(text.split("\n"), after.split("\n")).length).toBeLessThan(2);
    });
    expect(done).toBeGreaterThan(0);
  });
});

/** Returns the lines missing from `after`, if the others keep their order. */
function missing(before: readonly string[], after: readonly string[]): string[] {
  let at = 0;
  return before.filter((line) => {
    const found = after.indexOf(line, at);
    if (found >= 0) at = found + 1;
    return found < 0;
  });
}
