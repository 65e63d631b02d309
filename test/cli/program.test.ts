// Owns the proof of the command line's manners: common options on either side, help with examples, one line per failure.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { runInside } from "../support/command-line.ts";

let dir = "";
let good = "";

beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), "tierkv-cli-"));
  good = join(dir, "good.toml");
  writeFileSync(good, '[cluster]\nrole = "inference"\n');
});

afterAll(() => rmSync(dir, { recursive: true }));

const COMMANDS = [
  "vault",
  "sidecar",
  "status",
  "vaults",
  "vaults ls",
  "explain",
  "doctor",
  "flush",
  "init",
  "config",
  "config check",
  "config example",
  "config docs",
  "demo",
  "version",
];

test.each(COMMANDS)("%s --help names the common options and gives an example", async (command) => {
  const { exitCode, stdout, stderr } = await runInside([...command.split(" "), "--help"]);
  expect([exitCode, stderr]).toEqual([0, ""]);
  expect(stdout).toContain(`Usage: tierkv ${command}`);
  expect(stdout).toMatch(/--config <path>/);
  expect(stdout).toMatch(/--json/);
  expect(stdout).toMatch(new RegExp(`Example:\n  tierkv ${command}`));
});

/** Returns the paths of a command and of all below it, as help lists them. */
async function pathsBelow(path: readonly string[]): Promise<(readonly string[])[]> {
  const { stdout } = await runInside([...path, "--help"]);
  const [, listed = ""] = stdout.split(/^Commands:$/m);
  const names = [...listed.matchAll(/^ {2}([a-z]+) /gm)].map(([, name = ""]) => name);
  const children = names.filter((name) => name !== "help" && name !== "tierkv");
  const below = await Promise.all(children.map((name) => pathsBelow([...path, name])));
  return [path, ...below.flat()];
}

test("the help of every command, however deep, says what it does", async () => {
  const paths = await pathsBelow([]);
  expect(paths.length).toBeGreaterThan(40);
  for (const path of paths) {
    const { stdout } = await runInside([...path, "--help"]);
    const [, about = ""] = stdout.split("\n\n");
    expect(about, path.join(" ")).toMatch(/^[A-Z].*[.]$/s);
  }
});

test("help marks the options that a command cannot do without", async () => {
  const { stdout } = await runInside(["warm", "--help"]);
  expect(stdout.replaceAll(/\s+/g, " ")).toContain("like http://127.0.0.1:8000 (required)");
  expect(stdout.match(/\(required\)/g)).toHaveLength(1);
});

test("--help lists every command", async () => {
  const { stdout } = await runInside(["--help"]);
  for (const command of COMMANDS) expect(stdout).toContain(`  ${command.split(" ", 1)[0]} `);
});

test.each([[["--version"]], [["-V"]], [["version"]]])("%j is that of the package", async (argv) => {
  const { exitCode, stdout } = await runInside(argv);
  expect([exitCode, stdout]).toEqual([0, "0.1.0\n"]);
});

test.each([
  [["--json", "help", "nosuch"], "unknown command 'nosuch'; see `tierkv --help`"],
  [["session", "--json"], "the command is missing; see `tierkv session --help`"],
  [["--json"], "the command is missing; see `tierkv --help`"],
])("%j prints its error as JSON", async (argv, message) => {
  const { exitCode, stdout } = await runInside(argv);
  const { error } = JSON.parse(stdout) as { error: { code: string; message: string } };
  expect([exitCode, error.code]).toEqual([2, "USAGE"]);
  expect(error.message).toContain(message);
});

test.each([
  ["--json", "--version"],
  ["-V", "--json"],
  ["version", "--json"],
])("%s %s prints the version as JSON", async (...argv) => {
  const { exitCode, stdout } = await runInside(argv);
  expect([exitCode, JSON.parse(stdout)]).toMatchObject([0, { version: "0.1.0" }]);
});

test.each([
  [["-h"], ["--help"]],
  [["help"], ["--help"]],
  [["help", "help"], ["--help"]],
  [
    ["--json", "help", "vault"],
    ["vault", "--help"],
  ],
  [
    ["session", "help", "--help"],
    ["session", "--help"],
  ],
  [
    ["help", "vault"],
    ["vault", "--help"],
  ],
  [
    ["help", "vaults", "drain"],
    ["vaults", "drain", "--help"],
  ],
  [
    ["vault", "-h"],
    ["vault", "--help"],
  ],
  [
    ["config", "check", "-h"],
    ["config", "check", "--help"],
  ],
])("%j says what %j says", async (short, long) => {
  expect(await runInside(short)).toEqual(await runInside(long));
  expect((await runInside(short)).exitCode).toBe(0);
});

test.each([
  ["before the command", (path: string) => ["--config", path, "--json", "config", "check"]],
  ["between its parts", (path: string) => ["config", "--config", path, "--json", "check"]],
  ["behind it", (path: string) => ["config", "check", "--json", "--config", path]],
  ["on both sides", (path: string) => ["--json", "config", "check", `--config=${path}`]],
])("--config and --json are taken %s", async (_where, argv) => {
  const { exitCode, stdout, stderr } = await runInside(argv(good));
  expect([exitCode, stderr]).toEqual([0, ""]);
  expect(JSON.parse(stdout)).toMatchObject({ ok: true, path: good, problems: [] });
});

test.each([
  [["vualt"], "unknown command 'vualt' (did you mean vault?); see `tierkv --help`"],
  [["help", "vualt"], "unknown command 'vualt' (did you mean vault?); see `tierkv --help`"],
  [["vualt", "--help"], "unknown command 'vualt' (did you mean vault?)"],
  [["config", "nosuch", "-h"], "unknown command 'nosuch'; see"],
  [["help", "status", "more"], "status has no command 'more'; see `tierkv status --help`"],
  [
    ["init", "--output", "/usr"],
    "/usr is a folder: name a file in it, like --output /usr/tierkv.toml",
  ],
  [
    ["doctor", "--shm", "/usr/nosuch/x"],
    "--shm /usr/nosuch/x: there is no folder /usr/nosuch: create it",
  ],
  [["vault", "--prot", "1"], "unknown option '--prot'"],
  [
    ["flush", "--target", "kv"],
    "'kv' is invalid. Allowed choices are kv_cold, ssm_cold, cold; see",
  ],
  [["status", "--config"], "'--config <path>' argument missing"],
  [["status", "more"], "too many arguments"],
])("%j is refused in one line", async (argv, text) => {
  const { exitCode, stdout, stderr } = await runInside(argv);
  expect([exitCode, stdout]).toEqual([2, ""]);
  expect(stderr).toMatch(/^tierkv: [^\n]+ \(USAGE\)\n$/);
  expect(stderr).toContain(text);
});

test.each([[[]], [["config"]]])("no command (%j) shows the help as a mistake", async (argv) => {
  const { exitCode, stdout, stderr } = await runInside(argv);
  expect([exitCode, stdout]).toEqual([2, ""]);
  expect(stderr).toContain("Usage: tierkv");
});

test("with --json a failure is a result too", async () => {
  const { exitCode, stdout, stderr } = await runInside([
    "status",
    "--json",
    "--config",
    "/no/such.toml",
  ]);
  expect(exitCode).toBe(2);
  expect(JSON.parse(stdout)).toMatchObject({
    error: { code: "CONFIG_UNREADABLE", path: "/no/such.toml", reason: "it does not exist" },
  });
  expect(stderr).toMatch(/^tierkv: \/no\/such\.toml: cannot be read: it does not exist.*\n$/);
});

test("TIERKV_CONFIG names the file as --config does", async () => {
  const { stdout } = await runInside(["config", "check", "--json"], {
    env: { TIERKV_CONFIG: good },
  });
  expect(JSON.parse(stdout)).toMatchObject({ ok: true, path: good });
});

test("config check shows every mistake", async () => {
  const path = join(dir, "bad.toml");
  writeFileSync(path, '[vault]\nmax_byte = 1\nlisten = "here"\n');
  const { exitCode, stdout, stderr } = await runInside(["config", "check", "--config", path]);
  expect([exitCode, stdout]).toEqual([2, ""]);
  expect(stderr.trimEnd().split("\n")).toEqual([
    `tierkv: ${path}:2: [vault] max_byte = 1: unknown key; did you mean max_bytes? (CONFIG_UNKNOWN_KEY)`,
    `tierkv: ${path}:3: [vault] listen = "here": the port is missing; write listen = "here:50051" (CONFIG_BAD_VALUE)`,
  ]);
});

test("config example is taken by config check", async () => {
  const path = join(dir, "example.toml");
  writeFileSync(path, (await runInside(["config", "example"])).stdout);
  const { exitCode, stdout } = await runInside(["config", "check", "--config", path]);
  expect([exitCode, stdout]).toEqual([0, `configuration is good: ${path}\n`]);
});

test("a vault on a machine that is none is refused with the line to change", async () => {
  const { exitCode, stderr } = await runInside(["vault", "--config", good]);
  expect(exitCode).toBe(2);
  expect(stderr).toContain(`${good}:2: [cluster] role = "inference": that is an engine's machine`);
  expect(stderr).toContain('write role = "cold" (all records), "kv_cold" (attention KV)');
  expect(stderr).toContain("`tierkv init --machine vault` writes such a file");
});

test("-v shows the version, as -V does", async () => {
  expect(await runInside(["-v"])).toEqual(await runInside(["--version"]));
});

test("results and errors of --json name the version of their schema", async () => {
  const { stdout } = await runInside(["version", "--json"]);
  expect(JSON.parse(stdout)).toMatchObject({ schema: 1 });
  const refused = await runInside(["status", "more", "--json"]);
  expect(JSON.parse(refused.stdout)).toMatchObject({ schema: 1, error: { code: "USAGE" } });
});

test.each([
  [["nosuch"], "unknown command 'nosuch'; see `tierkv --help`"],
  [["vaults", "lst"], "unknown command 'lst' (did you mean ls?); see `tierkv vaults --help`"],
  [["help", "vaults", "lst"], "see `tierkv vaults --help`"],
  [["vaults", "drain", "--nosuch"], "unknown option '--nosuch'; see `tierkv vaults drain --help`"],
  [["completion", "tcsh"], "'shell' cannot be 'tcsh'. Allowed choices are bash, zsh, fish; see"],
  [
    ["warm", "--engine", "http://127.0.0.1:1", "/nosuch"],
    "/nosuch cannot be read: there is no such file",
  ],
  [["fidelity", "--text", "/"], "--text / cannot be read: it is a folder"],
  [["join"], "the code is missing: give it as an argument, or - to read it from standard input"],
  [["doctor", "--model", "m"], "--model names the model of an engine: give --engine, too"],
])("%j says %j", async (argv, said) => {
  const { exitCode, stderr } = await runInside(argv);
  expect(exitCode).toBe(2);
  expect(stderr).toContain(said);
});

test("help fits a narrow terminal", async () => {
  const columns = 60;
  for (const argv of [["--help"], ["vaults", "drain", "--help"], ["plan", "--help"]]) {
    const { stdout } = await runInside(argv, { columns });
    const lines = stdout.split("\n").filter((line) => line.length > columns);
    // Examples stay whole, to be copied.
    expect(lines.filter((line) => !line.startsWith("  tierkv "))).toEqual([]);
  }
});

test.each([["explain"], ["top"], ["vaults ls"], ["session ls"], ["plan"]])(
  "%s on a vault's machine says where to run it",
  async (command) => {
    const config = join(dir, "vault.toml");
    writeFileSync(config, '[cluster]\nrole = "cold"\n');
    const env = { XDG_RUNTIME_DIR: dir };
    const { exitCode, stderr } = await runInside([...command.split(" "), "--config", config], {
      env,
    });
    expect(exitCode).toBe(2);
    expect(stderr).toContain(
      `this is a vault's machine ([cluster] role = "cold" in ${config}): run it on an engine's`,
    );
  },
);
