// Owns the proof that files of other users are not read: configuration, secrets, and what a vault keeps in its data_dir.
import { spawnSync } from "node:child_process";
import {
  chmodSync,
  chownSync,
  lchownSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { readPrivate, readPublic, writePrivate } from "../../src/base/private-file.ts";
import { loadConfig } from "../../src/config/load.ts";
import { ModelNames } from "../../src/vault/state/models.ts";
import { logger, MIB, openVault } from "../support/vaults.ts";

const NOBODY = 65_534;
const isRoot = process.getuid?.() === 0;

let folder = "";
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "tierkv-own-"));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

function write(name: string, text: string, mode = 0o600): string {
  const path = join(folder, name);
  writeFileSync(path, text);
  chmodSync(path, mode);
  return path;
}

function pipe(name: string): string {
  const path = join(folder, name);
  expect(spawnSync("mkfifo", ["-m", "600", path]).status).toBe(0);
  return path;
}

const load = (path: string): unknown => loadConfig(path, { HOME: folder });
const secret = (path: string): unknown => readPrivate(path, "[vault] tokens");
const certificate = (path: string): unknown => readPublic(path, "[vault] tls_cert");
const readers = [
  ["a configuration", load],
  ["a secret", secret],
  ["a certificate", certificate],
] as const;

test.skipIf(!isRoot).each(readers)("F39 %s of another user is refused", (_, read) => {
  const path = write("file", "");
  chownSync(path, NOBODY, NOBODY);
  expect(() => read(path)).toThrow(`${path}: `);
  expect(() => read(path)).toThrow(/it belongs to user 65534, this is user 0; remove it, or run/);
});

test.skipIf(!isRoot).each(readers)("F39 %s behind another user's link is refused", (_, read) => {
  const path = join(folder, "link");
  symlinkSync(write("file", ""), path);
  lchownSync(path, NOBODY, NOBODY);
  expect(() => read(path)).toThrow("it is a link of user 65534");
});

test.each(readers)("%s that is a pipe is refused at once", (_, read) => {
  expect(() => read(pipe("pipe"))).toThrow("it is not a file");
});

test.each(readers)("%s that others may write is refused", (_, read) => {
  for (const mode of [0o666, 0o602]) {
    const path = write(`file-${mode.toString(8)}`, "", mode);
    expect(() => read(path)).toThrow(`it has mode ${mode.toString(8)}, so others may`);
  }
});

test("a link of our own is followed", () => {
  const path = join(folder, "link");
  symlinkSync(write("file", "read:secret"), path);
  expect(secret(path)).toBe("read:secret");
  expect(() => load(path)).toThrow("not valid TOML");
});

test.skipIf(!isRoot)("the configuration of the working directory is no exception", () => {
  const before = process.cwd();
  chownSync(write("tierkv.toml", "[vault]\nmax_bytes = 1"), NOBODY, NOBODY);
  process.chdir(folder);
  try {
    expect(() => loadConfig(null, { HOME: "/nowhere" })).toThrow("it belongs to user 65534");
  } finally {
    process.chdir(before);
  }
});

test.skipIf(!isRoot)("no secret is written into another user's directory", () => {
  const path = join(folder, "theirs", "token");
  mkdirSync(join(folder, "theirs"), { mode: 0o755 });
  chownSync(join(folder, "theirs"), NOBODY, NOBODY);
  expect(() => writePrivate(path, "x", "[cluster] credentials")).toThrow(
    "it belongs to user 65534; set [cluster] credentials",
  );
});

test("the names of models are neither read nor written through a link", () => {
  const precious = write("precious", "precious");
  const dataDir = join(folder, "data");
  mkdirSync(dataDir, { mode: 0o700 });
  const names = new ModelNames(dataDir, logger);
  symlinkSync(precious, join(dataDir, "models.json.new"));
  symlinkSync(precious, join(dataDir, "models.json"));
  names.learn(Buffer.alloc(32, 1) as never, "m");
  expect(readFileSync(precious, "utf8")).toBe("precious");
  expect(new ModelNames(dataDir, logger).namespacesOf("m")).toHaveLength(1);
});

const disk = (dataDir: string): Parameters<typeof openVault>[0] => ({
  disk: { dataDir, diskBytes: 64 * MIB, durability: "sync", diskTtlS: null },
});

test.each(["models.json.new", "tombstones", "00000001-000000000001-0000000000000001.seg"])(
  "a vault does not start with a pipe or a link as %s, and says which",
  async (name) => {
    const path = pipe(name);
    await expect(openVault(disk(folder))).rejects.toThrow(`${path}: it is no regular file`);
    rmSync(path);
    symlinkSync("/etc/hostname", path);
    await expect(openVault(disk(folder))).rejects.toThrow(`${path}: it is no regular file`);
    rmSync(path);
    await (await openVault(disk(folder))).close();
  },
);

test("a vault does not start in a directory that others may write", async () => {
  chmodSync(folder, 0o777);
  await expect(openVault(disk(folder))).rejects.toThrow(
    `${folder}: it has mode 777, so others may write there; run \`chmod 700 ${folder}\``,
  );
});

test("a secret that cannot be written leaves no part of it behind", () => {
  const path = join(folder, "token");
  mkdirSync(path);
  expect(() => writePrivate(path, "secret", "[cluster] credentials")).toThrow("cannot be written");
  expect(readdirSync(folder)).toEqual(["token"]);
});
