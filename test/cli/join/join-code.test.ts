// Owns the proof that a join code says what was put in, and that a slip in it is seen.
import fc from "fast-check";
import { expect, test } from "vitest";
import { decodeJoinCode, encodeJoinCode } from "../../../src/cli/join/join-code.ts";

const INVITATION = {
  address: "192.168.1.10:50051",
  fingerprint: Buffer.alloc(32, 7),
  secret: "t".repeat(43),
};

test("what goes in comes out", () => {
  const code = encodeJoinCode(INVITATION);
  expect(decodeJoinCode(`  ${code}\n`)).toEqual(INVITATION);
  expect(code.length).toBeLessThan(160);
  const token = fc.stringMatching(/^[\x21-\x7e]{32,80}$/);
  const address = fc.constantFrom("a:1", "[fe80::1]:50051", "vault.lan:65535");
  const fingerprint = fc.uint8Array({ minLength: 32, maxLength: 32 });
  fc.assert(
    fc.property(token, address, fingerprint, (text, place, bytes) => {
      const given = { address: place, fingerprint: Buffer.from(bytes), secret: text };
      expect(decodeJoinCode(encodeJoinCode(given))).toEqual(given);
    }),
  );
});

test("every character changed, left out or doubled is seen, and never shown", () => {
  const code = encodeJoinCode(INVITATION);
  for (let index = 0; index < code.length; index += 1) {
    const other = code[index] === "A" ? "B" : "A";
    const slips = [
      code.slice(0, index) + other + code.slice(index + 1),
      code.slice(0, index) + code.slice(index + 1),
      code.slice(0, index) + code[index] + code.slice(index),
    ];
    for (const slip of slips.filter((text) => text !== code)) {
      const refused = (): unknown => decodeJoinCode(slip);
      // The last character may have bits that say nothing.
      if (index === code.length - 1 && same(slip, code)) continue;
      expect(refused).toThrow(expect.objectContaining({ code: "JOIN_CODE" }));
      expect(refused).not.toThrow(slip);
    }
  }
});

/** Whether two codes stand for the same bytes. */
function same(one: string, other: string): boolean {
  const bytes = (code: string): Buffer => Buffer.from(code.slice(5), "base64url");
  return bytes(one).equals(bytes(other));
}

test.each<[code: string, reason: string]>([
  ["", "does not begin with tkv1."],
  ["hello", "does not begin with tkv1."],
  ["tkv2.AAAA", "of another release"],
  ["tkv1.", "a part is missing or changed"],
  ["tkv1.AAAA", "a part is missing or changed"],
  ["tkv1.a b", "characters that no code has"],
  [`tkv1.${"A".repeat(4000)}`, "too many"],
])("%j is refused with the reason and the fix", (code, reason) => {
  const refused = (): unknown => decodeJoinCode(code);
  expect(refused).toThrow(reason);
  expect(refused).toThrow("tierkv invite");
});

test("any text ends in an invitation or a refusal", () => {
  fc.assert(
    fc.property(fc.string({ maxLength: 200 }), (text) => {
      expect(() => decodeJoinCode(`tkv1.${text}`)).toThrow(
        expect.objectContaining({ code: "JOIN_CODE" }),
      );
    }),
  );
});

test("the whole line is taken, and an address that cannot be is refused", () => {
  expect(decodeJoinCode(`tierkv join ${encodeJoinCode(INVITATION)}`)).toEqual(INVITATION);
  for (const port of [0, 65_536, 99_999]) {
    const code = encodeJoinCode({ ...INVITATION, address: `vault:${port}` });
    expect(() => decodeJoinCode(code)).toThrow(
      `its address vault:${port} has no port from 1 to 65535; copy the whole line`,
    );
  }
  const control = encodeJoinCode({ ...INVITATION, address: "a\u001b[2J:1" });
  expect(() => decodeJoinCode(control)).toThrow("it names no address");
});
