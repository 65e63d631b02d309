// Owns the proof of where the configuration comes from: flag, environment, working directory, home, and what ends the search.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { isTierkvError } from "../../src/base/errors.ts";
import { checkFile, findFile, loadConfig, placeOf } from "../../src/config/load.ts";

let dir = "";
const before = process.cwd();

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "tierkv-config-"));
  process.chdir(dir);
});

afterEach(() => {
  process.chdir(before);
  rmSync(dir, { recursive: true });
});

function write(path: string, text: string | Uint8Array): string {
  const full = join(dir, path);
  mkdirSync(join(full, ".."), { recursive: true });
  writeFileSync(full, text);
  return full;
}

function refusal(path: string | null, env: Record<string, string> = {}): string {
  try {
    loadConfig(path, { HOME: dir, ...env });
  } catch (error) {
    if (isTierkvError(error) && error.exitCode === 2) return error.message;
    throw error;
  }
  throw new Error("was not refused");
}

test("the flag goes before the environment, that before the directory, that before the home", () => {
  const flag = write("flag.toml", "");
  const environment = write("env.toml", "");
  const home = write(".config/tierkv/tierkv.toml", "");
  const env = { HOME: dir };
  expect(findFile(null, env)).toBe(home);
  const here = write("tierkv.toml", "");
  expect(findFile(null, env)).toBe(here);
  expect(findFile(null, { ...env, TIERKV_CONFIG: environment })).toBe(environment);
  expect(findFile(null, { ...env, TIERKV_CONFIG: "" })).toBe(here);
  expect(findFile(flag, { ...env, TIERKV_CONFIG: environment })).toBe(flag);
});

test("no file anywhere means the defaults", () => {
  const config = loadConfig(null, { HOME: dir });
  expect(config.path).toBeNull();
  expect(config.cluster.role).toBe("inference");
});

test("a mistake in a file that was found ends the start", () => {
  write("tierkv.toml", "[vault]\nmax_byte = 1");
  expect(refusal(null)).toContain(
    "tierkv.toml:2: [vault] max_byte = 1: unknown key; did you mean max_bytes?",
  );
});

test("a given file that is not there is an error, also from the environment", () => {
  expect(refusal("none.toml")).toMatch(
    /none\.toml: cannot be read: it does not exist; correct the path/,
  );
  expect(refusal(null, { TIERKV_CONFIG: "/no/such.toml" })).toContain(
    "/no/such.toml: cannot be read",
  );
});

test("a directory is no configuration", () => {
  expect(refusal(dir)).toContain("it is not a file");
});

test("bytes that are no text are refused", () => {
  expect(refusal(write("b.toml", Uint8Array.of(0x72, 0xff, 0xfe)))).toContain(
    "it is not UTF-8 text; save it as UTF-8",
  );
});

test("a file above the limit is refused unread", () => {
  expect(refusal(write("big.toml", "#".repeat(1024 * 1024 + 1)))).toContain(
    "1048577 bytes, the limit is 1048576",
  );
});

test("a byte order mark is no mistake", () => {
  expect(loadConfig(write("bom.toml", '\uFEFF[log]\nlevel = "warn"'), {}).log.level).toBe("warn");
});

test("TIERKV_LOG goes before the file, and its mistakes are told", () => {
  const file = write("t.toml", '[log]\nlevel = "warn"');
  expect(loadConfig(file, { TIERKV_LOG: "debug" }).log.level).toBe("debug");
  expect(loadConfig(file, { TIERKV_LOG: "" }).log.level).toBe("warn");
  expect(refusal(file, { TIERKV_LOG: "debag" })).toBe(
    'environment: TIERKV_LOG = "debag": not one of "debug", "info", "warn", "error", "silent"; did you mean "debug"?',
  );
});

test("every mistake of a file is reported at once", () => {
  const { config, problems } = checkFile(write("t.toml", "[vault]\na = 1\nb = 2"), {});
  expect(config).toBeNull();
  expect(problems).toHaveLength(2);
});

test("the place of a key is told as file and line", () => {
  const file = write("t.toml", '# a\n[cluster]\nrole = "inference"');
  expect(placeOf(loadConfig(file, {}), ["cluster", "role"])).toBe(`${file}:3`);
  expect(placeOf(loadConfig(file, {}), ["vault", "listen"])).toBe(file);
});
