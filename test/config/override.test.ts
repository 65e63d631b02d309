// Owns the proof that the command line goes before the file, and is checked by the same table.
import { expect, test } from "vitest";
import { isTierkvError } from "../../src/base/errors.ts";
import { checkConfig } from "../../src/config/check.ts";
import type { Config } from "../../src/config/config.ts";
import { override } from "../../src/config/override.ts";

const FILE = '[cluster]\nrole = "kv_cold"\n[vault]\nmax_bytes = "1GiB"\n';

function file(): Config {
  const { config } = checkConfig(FILE, "t.toml", {});
  if (config === null) throw new Error("bad test");
  return config;
}

function given(option: string, section: string, name: string, text: string): Config {
  return override(file(), [{ option, section, name, text }]);
}

function refusal(option: string, section: string, name: string, text: string): string {
  try {
    given(option, section, name, text);
  } catch (error) {
    if (isTierkvError(error) && error.exitCode === 2) return error.message;
    throw error;
  }
  throw new Error("was not refused");
}

test("nothing given, nothing changed", () => {
  expect(override(file(), [])).toEqual(file());
});

test("what is given stands in the place of the file's value, all else stays", () => {
  const config = given("--role", "cluster", "role", "cold");
  expect(config).toEqual({ ...file(), cluster: { ...file().cluster, role: "cold" } });
  expect(() => Object.assign(config.cluster, { role: "inference" })).toThrow(TypeError);
});

test.each([
  ["24GB", 24e9],
  ["1GiB", 1024 ** 3],
  ["24000000000", 24e9],
  ["24_000_000_000", 24e9],
])("takes %s as bytes, with and without a unit", (text, bytes) => {
  expect(given("--max-bytes", "vault", "max_bytes", text).vault.maxBytes).toBe(bytes);
});

test.each([
  ["--listen", "vault", "listen", "here", 'the port is missing; write --listen "here:50051"'],
  ["--listen", "vault", "listen", "unix:v.sock", 'write --listen "unix:/absolute/path"'],
  ["--listen", "vault", "listen", "5", 'the port is missing; write --listen "127.0.0.1:50051"'],
  ["--max-bytes", "vault", "max_bytes", "3", "below the least value 16777216"],
  ["--max-bytes", "vault", "max_bytes", "much", 'or --max-bytes "24GB"'],
  ["--role", "cluster", "role", "kv-cold", 'did you mean "kv_cold"?'],
  ["--socket", "sidecar", "socket", "s.sock", 'write --socket "/absolute/path"'],
])("%s: [%s] %s = %s is refused by the option's name", (option, section, name, text, fix) => {
  const message = refusal(option, section, name, text);
  expect(message).toContain(`command line: ${option} = "${text}": `);
  expect(message).toContain(fix);
});

test("a value that contradicts the file is refused", () => {
  const message = refusal("--wait-ms", "restore", "wait_ms", "100");
  expect(message).toMatch(/^command line: \[restore\] stall_ms = .*write stall_ms = 100 or less$/);
});

test("a value that no key may have beside the others is refused by its option", () => {
  expect(refusal("--listen", "sidecar", "page_listen", "10.9.9.9:80")).toMatch(
    /^command line: --listen = "10\.9\.9\.9:80": .*; write --listen "127\.0\.0\.1:80"/,
  );
});
