// Owns the table of starts and questions that cannot go well: each ends within a second, with what is wrong and what to do.
// @module-tag alone
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { chmodSync } from "node:fs";
import { createServer } from "node:net";
import type { AddressInfo, ListenOptions } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { encodeFrame } from "../../src/sidecar/socket/frames.ts";
import { foreignDirectory, underSmallDisk } from "../support/circumstances.ts";
import { UNDER_FEW_FILES, UNDER_PERMISSIONS } from "../support/circumstances.ts";
import { lastLine, quickest, runInside, runProgram } from "../support/command-line.ts";
import type { Outcome, ProgramOptions } from "../support/command-line.ts";
import { openFakeVault } from "../support/fake-vault.ts";
import { closeAfterTest } from "../support/vaults.ts";

let dir = "";

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "tierkv-no-"));
});

afterEach(() => {
  chmodSync(dir, 0o700);
  rmSync(dir, { recursive: true, force: true });
});

/** What a refused command says: its code, its exit code, and parts of its one line. */
interface Expected {
  code: string;
  exitCode: 1 | 2;
  says: readonly string[];
}

const refused = (exitCode: 1 | 2, code: string, ...says: string[]): Expected => ({
  code,
  exitCode,
  says,
});

async function check(
  run: () => Promise<Outcome>,
  { code, exitCode, says }: Expected,
): Promise<void> {
  const outcome = await quickest(run);
  const line = lastLine(outcome.stderr);
  expect(line).toMatch(new RegExp(`^tierkv: .+ \\(${code}\\)$`));
  expect(outcome.exitCode).toBe(exitCode);
  for (const text of says) expect(line).toContain(text);
  expect(outcome.stdout + outcome.stderr).not.toMatch(/\n\s+at /);
  expect(outcome.ms).toBeLessThan(outcome.msMax);
}

/** The command line inside this process: what it does until it gives up is the same. */
const inside =
  (argv: readonly string[], env: Record<string, string> = {}): (() => Promise<Outcome>) =>
  () =>
    runInside(argv, { env });

const program =
  (argv: readonly string[], options: ProgramOptions = {}): (() => Promise<Outcome>) =>
  () =>
    runProgram(argv, options);

function write(name: string, text: string | Uint8Array): string {
  const path = join(dir, name);
  writeFileSync(path, text);
  return path;
}

/** Quiet, so that the one line is all there is; with a vault elsewhere, so that none is started here. */
const QUIET = '[log]\nlevel = "silent"\n[cluster]\nkv_cold = "127.0.0.1:1"\n';

/** `tierkv sidecar` with these keys of its table. */
function sidecar(keys: string): string[] {
  return ["sidecar", "--config", write("s.toml", `${QUIET}[sidecar]\n${keys}\n`)];
}

const atSocket = (path: string): string[] => sidecar(`socket = "${path}"`);

function vault(listen: string, more = ""): string[] {
  const role = '[log]\nlevel = "silent"\n[cluster]\nrole = "kv_cold"\n';
  return [
    "vault",
    "--config",
    write("v.toml", `${role}[vault]\ninsecure_lan = true\nlisten = "${listen}"\n${more}`),
  ];
}

/** Somebody who listens there already. */
async function occupy(where: ListenOptions, greeting?: Uint8Array): Promise<number> {
  const server = createServer((socket) => void (greeting && socket.end(greeting)));
  await new Promise<void>((resolve) => {
    server.listen(where, resolve);
  });
  closeAfterTest({ close: () => server.close() });
  return where.path === undefined ? (server.address() as AddressInfo).port : 0;
}

describe("the address", () => {
  test("F44 a port in use", async () => {
    const address = `127.0.0.1:${await occupy({ port: 0, host: "127.0.0.1" })}`;
    const says = [`${address} is in use by another process`, "set another [vault] listen"];
    await check(program(vault(address)), refused(1, "ADDRESS_IN_USE", ...says));
  });

  test("an address of another machine", async () => {
    const says = ["192.0.2.1:50051", "EADDRNOTAVAIL", "an address of this machine"];
    await check(inside(vault("192.0.2.1:50051")), refused(1, "LISTEN_FAILED", ...says));
    const further = [says[0]!, says[1]!, "correct [vault] addresses, or take it out there"];
    const two = vault("127.0.0.1:0", 'addresses = ["192.0.2.1:50051"]\n');
    await check(inside(two), refused(1, "LISTEN_FAILED", ...further));
  });

  test("F44 a second sidecar", async () => {
    const path = join(dir, "s.sock");
    await occupy({ path });
    const says = [path, "one sidecar serves all engines of a host; stop the other one"];
    await check(program(atSocket(path)), refused(1, "ADDRESS_IN_USE", ...says));
  });

  test("a second vault on a socket", async () => {
    const path = join(dir, "v.sock");
    await occupy({ path });
    const says = [path, "stop that vault, or set another [vault] listen"];
    await check(inside(vault(`unix:${path}`)), refused(1, "ADDRESS_IN_USE", ...says));
  });

  test("a directory that others may enter", async () => {
    chmodSync(dir, 0o750);
    const says = [`${dir} has mode 750 and must be 700`, `chmod 700 ${dir}`];
    await check(inside(atSocket(join(dir, "s.sock"))), refused(1, "LISTEN_FAILED", ...says));
    says.push("or set another [vault] listen");
    await check(inside(vault(`unix:${dir}/v.sock`)), refused(1, "LISTEN_FAILED", ...says));
  });

  test("a directory of somebody else", async () => {
    const made = join(dir, "theirs");
    mkdirSync(made, { mode: 0o700 });
    const theirs = foreignDirectory(made);
    const says = [`${theirs} belongs to user `, "set another [sidecar] socket"];
    await check(inside(atSocket(join(theirs, "s.sock"))), refused(1, "LISTEN_FAILED", ...says));
  });

  test.each([
    [
      "a file for its directory",
      () => join(write("file", ""), "s.sock"),
      "file is not a directory",
    ],
    [
      "a directory below a file",
      () => join(write("file", ""), "d", "s.sock"),
      "its directory cannot be made: ENOTDIR",
    ],
    ["a directory that cannot be made", () => "/proc/none/s.sock", "cannot be made: ENOENT"],
  ])("%s", async (_what, socket, why) => {
    const says = [socket(), why];
    const at = atSocket(socket());
    await check(inside(at), refused(1, "LISTEN_FAILED", ...says, "set another [sidecar] socket"));
    const unix = vault(`unix:${socket()}`);
    await check(inside(unix), refused(1, "LISTEN_FAILED", ...says, "set another [vault] listen"));
  });

  test.skipIf(UNDER_PERMISSIONS === null)("no permission to make the directory", async () => {
    chmodSync(dir, 0o500);
    const argv = ["sidecar", "--socket", join(dir, "d", "s.sock")];
    const says = [join(dir, "d"), "EACCES: permission denied", "set another [sidecar] socket"];
    const run = program(argv, { under: UNDER_PERMISSIONS ?? [] });
    await check(run, refused(1, "LISTEN_FAILED", ...says));
  });

  test.skipIf(UNDER_PERMISSIONS === null)("no permission to write into it", async () => {
    const made = join(dir, "d");
    mkdirSync(made, { mode: 0o500 });
    const argv = ["sidecar", "--socket", join(made, "s.sock")];
    const says = ["lock file", "Permission denied", "set another [sidecar] socket"];
    const run = program(argv, { under: UNDER_PERMISSIONS ?? [] });
    await check(run, refused(1, "LISTEN_FAILED", ...says));
  });

  test.each([
    ["a file", (path: string) => writeFileSync(path, "precious")],
    ["a directory", (path: string) => mkdirSync(path)],
  ])("%s where the socket should be", async (_what, make) => {
    const path = join(dir, "s.sock");
    make(path);
    const says = [path, "something that is not a socket is there; remove it"];
    await check(inside(atSocket(path)), refused(1, "LISTEN_FAILED", ...says));
    await check(inside(vault(`unix:${path}`)), refused(1, "LISTEN_FAILED", ...says));
  });

  test("a lock that is none", async () => {
    const path = join(dir, "s.sock");
    mkdirSync(`${path}.lock`);
    const says = [path, "lock file", "set another [sidecar] socket"];
    await check(inside(atSocket(path)), refused(1, "LISTEN_FAILED", ...says));
  });

  test("a file where the machine's own vault should listen", async () => {
    const path = join(dir, "s.sock");
    writeFileSync(`${path}.vault`, "precious");
    const { exitCode, stderr } = await runProgram(["sidecar", "--socket", path]);
    expect(exitCode).toBe(1);
    expect(lastLine(stderr)).toMatch(
      /^tierkv: the vault of this machine did not start: .+s\.sock\.vault: something that is not a socket is there; .+ \(LOCAL_VAULT\)$/,
    );
  });
});

describe("the configuration", () => {
  const argv = (path: string): string[] => ["sidecar", "--config", path];

  test.each([
    ["none", () => join(dir, "none.toml"), "it does not exist", "correct the path"],
    ["a directory", () => dir, "it is not a file", "give the path of a tierkv.toml"],
    ["no text", () => write("t", Uint8Array.of(0x72, 0xff)), "not UTF-8 text", "save it as UTF-8"],
    ["a novel", () => write("t", "#".repeat(2 ** 20 + 1)), "the limit is 1048576", "give the path"],
  ])("%s", async (_what, path, ...says) => {
    await check(inside(argv(path())), refused(2, "CONFIG_UNREADABLE", path(), ...says));
  });

  test.skipIf(UNDER_PERMISSIONS === null)("one that may not be read", async () => {
    const path = write("t.toml", "");
    chmodSync(path, 0);
    const run = program(argv(path), { under: UNDER_PERMISSIONS ?? [] });
    const says = [path, "permission denied", "make it readable"];
    await check(run, refused(2, "CONFIG_UNREADABLE", ...says));
  });

  test.each([
    ["TIERKV_CONFIG", "/no/such.toml", "CONFIG_UNREADABLE", "/no/such.toml"],
    ["TIERKV_LOG", "loud", "CONFIG_BAD_VALUE", 'TIERKV_LOG = "loud"'],
  ])("%s that is wrong", async (name, value, code, text) => {
    await check(inside(["vault"], { [name]: value }), refused(2, code, text));
  });

  test.each([
    [
      ["vault"],
      "CONFIG_CONFLICT",
      '[cluster] role = "inference"',
      "`tierkv init --machine vault` writes such a file",
    ],
    [
      ["vault", "--role", "cold", "--listen", "here"],
      "CONFIG_BAD_VALUE",
      "--listen",
      '"here:50051"',
    ],
    [["vault", "--role", "cold", "--max-bytes", "1"], "CONFIG_BAD_VALUE", "--max-bytes", "16 MiB"],
    [["vault", "--role", "hot"], "USAGE", "'hot' is invalid", "kv_cold, ssm_cold, cold"],
    [["sidecar", "--socket", "s.sock"], "CONFIG_BAD_VALUE", "--socket", "/absolute/path"],
    [["sidecar", "--sockett", "/s"], "USAGE", "--sockett", "--socket"],
    [["flush"], "USAGE", "no terminal", "add --yes"],
  ])("%j", async (words, code, ...says) => {
    await check(inside(words, { HOME: dir }), refused(2, code, ...says));
  });
});

describe("the machine", () => {
  test.each(["sidecar", "vault"])("few open files for a %s", async (command) => {
    const isVault = command === "vault";
    const args = isVault
      ? ["--role", "cold", "--listen", "127.0.0.1:0", "--insecure-lan"]
      : ["--socket", `${dir}/s`];
    const run = program([command, ...args], { under: UNDER_FEW_FILES ?? [] });
    const says = ["the limit is 192, at least 256 are needed", "`ulimit -n 1024`"];
    await check(run, refused(1, "OPEN_FILES", ...says));
  });

  test("an arena larger than the memory", async () => {
    const says = ["s.toml:6: [sidecar] arena_bytes = ", "bytes of memory", "write arena_bytes = "];
    const argv = sidecar('arena_bytes = "1TiB"');
    await check(inside(argv), refused(2, "CONFIG_BAD_VALUE", ...says));
  });

  test.each([
    ["a file", () => write("file", ""), "it is not a directory"],
    ["one that cannot be made", () => "/proc/none", "it cannot be used: ENOENT"],
  ])("%s for an arena directory", async (_what, path, why) => {
    const says = [`s.toml:6: [sidecar] arena_dir = "${path()}"`, why];
    const argv = sidecar(`arena_dir = "${path()}"`);
    await check(inside(argv), refused(2, "CONFIG_BAD_VALUE", ...says, "or leave the key out"));
  });

  test.skipIf(UNDER_PERMISSIONS === null)("an arena directory that is read-only", async () => {
    const path = join(dir, "arena");
    mkdirSync(path, { mode: 0o500 });
    const run = program(sidecar(`arena_dir = "${path}"`), { under: UNDER_PERMISSIONS ?? [] });
    const says = [`[sidecar] arena_dir = "${path}"`, "EACCES: permission denied"];
    await check(run, refused(2, "CONFIG_BAD_VALUE", ...says));
  });

  test("an arena directory that is full", async (context) => {
    const path = join(dir, "arena");
    mkdirSync(path, { mode: 0o700 });
    const under = underSmallDisk(path);
    context.skip(under === null, "this machine does not let us mount");
    const says = [`[sidecar] arena_dir = "${path}"`, "1048576 bytes are free there"];
    const run = program(sidecar(`arena_dir = "${path}"`), { under: under ?? [] });
    await check(run, refused(2, "CONFIG_BAD_VALUE", ...says, "the smallest arena takes 16777216"));
  });
});

/** Runs `script` before the program. */
const preloaded = (script: string): ProgramOptions => {
  const loader = `data:text/javascript,${encodeURIComponent(script)}`;
  return { env: { NODE_OPTIONS: `--import "${loader}"` } };
};

/** In the place of the native core. */
function fakeCore(source: string): ProgramOptions {
  const url = `data:text/javascript,${encodeURIComponent(source)}`;
  const hook = `export const resolve = (name, context, next) =>
    name === "#core" ? { url: ${JSON.stringify(url)}, shortCircuit: true } : next(name, context);`;
  const hookUrl = `data:text/javascript,${encodeURIComponent(hook)}`;
  return preloaded(`import { register } from "node:module"; register(${JSON.stringify(hookUrl)});`);
}

describe("the installation", () => {
  test("a Node that is too old", async () => {
    const old = `Object.defineProperty(process, "versions", { value: { ...process.versions, node: "20.18.3" } });`;
    const says = ["Node 20.18.3 is too old: tierKV needs 20.19 or newer", "install it"];
    await check(program(["--version"], preloaded(old)), refused(1, "SYSTEM", ...says));
  });

  test("a program that is not built", async () => {
    const root = new URL("../../", import.meta.url);
    mkdirSync(join(dir, "bin"));
    for (const file of ["bin/tierkv.js", "package.json"])
      cpSync(fileURLToPath(new URL(file, root)), join(dir, file));
    const run = program(["--version"], { bin: join(dir, "bin", "tierkv.js") });
    await check(run, refused(1, "SYSTEM", "the program is not built: run `npm run setup`"));
  });

  test.each(["sidecar", "vault"])("a native core of another release, for a %s", async (command) => {
    const args = command === "vault" ? ["--role", "cold"] : ["--socket", join(dir, "s.sock")];
    const core = 'export const coreInfo = () => ({ version: "0.0.9", recordVersion: 1 });';
    const says = ["it is of version 0.0.9, this is tierKV 0.1.0", "run `npm run setup`"];
    const run = program([command, ...args], fakeCore(core));
    await check(run, refused(1, "CORE_MISSING", ...says));
  });

  test("no native core", async () => {
    const core = 'throw new Error("cannot open shared object file");';
    const says = ["cannot open shared object file", "run `npm run setup`"];
    const run = program(["vault", "--role", "cold"], fakeCore(core));
    await check(run, refused(1, "CORE_MISSING", ...says));
  });
});

describe("the other side, asked by `tierkv status`", () => {
  /** What it says of a vault or sidecar that does not fit; it ends with 1. */
  async function status(toml: string): Promise<string> {
    const path = write("t.toml", toml);
    const { exitCode, stdout, ms, msMax } = await quickest(inside(["status", "--config", path]));
    expect(exitCode).toBe(1);
    expect(ms).toBeLessThan(msMax);
    return stdout;
  }

  const ofVault = (address: string): Promise<string> =>
    status(`[cluster]\nrole = "kv_cold"\nkv_cold = "${address}"\n`);

  test.each([
    ["another protocol", { protocol: 9 }, ["protocol 9", "install the same release on both"]],
    ["another record version", { recordVersion: 7 }, ["record version 7", "the same release"]],
    ["the other class", { recordClass: 2 }, ["holds ssm records", "set [cluster] kv_cold to"]],
  ])("a vault of %s", async (_what, hello, says) => {
    const { address } = await openFakeVault({}, hello);
    const said = await ofVault(address);
    for (const text of [address, ...says]) expect(said).toContain(text);
  });

  test("no vault", async () => {
    expect(await ofVault("127.0.0.1:1")).toContain("kv vault at 127.0.0.1:1 does not answer");
  });

  const ofSidecar = (path: string): Promise<string> => status(`[sidecar]\nsocket = "${path}"\n`);

  test("no sidecar", async () => {
    const said = await ofSidecar(join(dir, "s.sock"));
    expect(said).toContain("there is no socket; an engine with tierKV starts it");
  });

  test("a sidecar of another protocol", async () => {
    const path = join(dir, "s.sock");
    await occupy({ path }, encodeFrame({ t: "welcome", protocol: 99, sidecar: "7.0.0" }));
    const said = await ofSidecar(path);
    for (const text of [path, "version 7.0.0", "local protocol 99", "the same release on both"])
      expect(said).toContain(text);
  });
});
