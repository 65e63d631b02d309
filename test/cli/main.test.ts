// Owns the proof, on the real program: bad starts end within a second with one line, processes drain on a signal.
// @module-tag alone
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { NO_COPIES, Program, quickest, runProgram } from "../support/command-line.ts";
import { until } from "../support/vaults.ts";

let dir = "";
const programs: Program[] = [];

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "tierkv-main-"));
});

afterEach(async () => {
  for (const program of programs.splice(0)) {
    program.signal("SIGKILL");
    await program.ended();
  }
  rmSync(dir, { recursive: true });
});

function write(name: string, toml: string): string {
  const path = join(dir, name);
  writeFileSync(path, toml);
  return path;
}

function start(argv: readonly string[]): Program {
  const program = new Program(argv);
  programs.push(program);
  return program;
}

const VAULT =
  '[cluster]\nrole = "kv_cold"\n[vault]\ninsecure_lan = true\nlisten = "127.0.0.1:0"\nmax_bytes = "32MiB"\n';

test.each([
  [
    "an unknown key",
    "vault",
    `${VAULT}max_byte = 1`,
    7,
    "[vault] max_byte = 1",
    "did you mean max_bytes?",
  ],
  [
    "a wrong type",
    "sidecar",
    "[cluster]\nrole = 7",
    2,
    "[cluster] role = 7",
    'write role = "inference"',
  ],
  [
    "no port",
    "sidecar",
    '[cluster]\nkv_cold = "vault"',
    2,
    '[cluster] kv_cold = "vault"',
    'write kv_cold = "vault:50051"',
  ],
  [
    "INT8 in words",
    "status",
    '[turbo_quant]\nenabled = "yes"',
    2,
    '[turbo_quant] enabled = "yes"',
    "write enabled = true or",
  ],
  ["no TOML", "flush", "[cluster", 1, "[cluster", "not valid TOML"],
  [
    "the wrong machine",
    "vault",
    '[cluster]\nrole = "inference"',
    2,
    '[cluster] role = "inference"',
    'write role = "cold"',
  ],
])(
  "%s ends `tierkv %s` within a second, with one line and exit code 2",
  async (_what, command, toml, line, ...says) => {
    const path = write("t.toml", toml);
    const { exitCode, stdout, stderr, ms, msMax } = await quickest(() =>
      runProgram([command, "--config", path]),
    );
    expect(ms).toBeLessThan(msMax);
    expect([exitCode, stdout]).toEqual([2, ""]);
    expect(stderr).toMatch(/^tierkv: [^\n]+\n$/);
    expect(stderr).toContain(`${path}:${line}`);
    for (const text of says) expect(stderr).toContain(text);
  },
);

test("F45 a vault says where it is, drains on SIGTERM and ends with 0", async () => {
  const vault = start(["vault", "--json", "--config", write("v.toml", VAULT)]);
  const ready = await vault.firstResult();
  expect(ready).toMatchObject({ event: "ready", class: "kv", maxBytes: 32 * 1024 ** 2 });
  expect(ready["address"]).toMatch(/^127\.0\.0\.1:\d+$/);
  vault.signal("SIGTERM");
  const { exitCode, stderr } = await vault.ended();
  expect(exitCode).toBe(0);
  const lines = stderr
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as Record<string, unknown>);
  expect(lines.map(({ msg }) => msg)).toContain("vault ready");
  expect(lines.at(-1)).toMatchObject({ level: "info", name: "vault", msg: "stopped" });
});

test.each(["vault", "sidecar", "gateway"])(
  "F45 a %s that gets SIGINT right after its first line starts, stops and ends with 0",
  async (command) => {
    const role = command === "vault" ? 'role = "kv_cold"\n' : "";
    const places = ["sidecar", "gateway"].map(
      (name) => `[${name}]\nsocket = "${join(dir, "run", `early-${name}.sock`)}"\n`,
    );
    const text = `[cluster]\n${role}[vault]\nlisten = "127.0.0.1:0"\ninsecure_lan = true\nmax_bytes = "32MiB"\n${places.join("")}listen = "127.0.0.1:0"\nengines = ["127.0.0.1:1"]\n`;
    const program = start([command, "--json", "--config", write("early.toml", text)]);
    await until(() => program.stderr.includes("configuration read"), "its first line");
    program.signal("SIGINT");
    const { exitCode, stderr } = await program.ended();
    expect([exitCode, stderr.includes('"msg":"stopped"')]).toEqual([0, true]);
  },
);

test("a vault that lets everybody in warns at every start", async () => {
  const config = write("v.toml", VAULT.replace("127.0.0.1", "0.0.0.0"));
  const vault = start(["vault", "--json", "--insecure-lan", "--config", config]);
  await vault.firstResult();
  vault.signal("SIGTERM");
  const { stderr } = await vault.ended();
  expect(stderr).toMatch(/"level":"warn".*insecure_lan/);
});

test("status finds sidecar and vaults, then misses what has gone; flush empties a vault", async () => {
  const vault = start(["vault", "--json", "--config", write("v.toml", VAULT)]);
  const { address } = await vault.firstResult();
  const socket = join(dir, "run", "s.sock");
  const config = write(
    "c.toml",
    `[cluster]\nkv_cold = "${String(address)}"\n[sidecar]\nsocket = "${socket}"\n`,
  );
  const sidecar = start(["sidecar", "--json", "--config", config]);
  await sidecar.firstResult();

  const up = await runProgram(["status", "--json", "--config", config]);
  expect(up.exitCode).toBe(0);
  const seen = JSON.parse(up.stdout) as { ok: boolean; targets: Record<string, unknown>[] };
  expect(seen.ok).toBe(true);
  expect(seen.targets).toEqual([
    expect.objectContaining({
      target: "sidecar",
      address: socket,
      reachable: true,
      version: "0.1.0",
      role: "inference",
    }),
    expect.objectContaining({
      target: "kv_cold",
      address,
      reachable: true,
      version: "0.1.0",
      role: "kv_cold",
      maxBytes: 32 * 1024 ** 2,
      records: 0,
      evicted: 0,
    }),
  ]);
  const shown = await runProgram(["status", "--config", config]);
  expect(shown.exitCode).toBe(0);
  expect(shown.stdout).toContain(
    "sidecar: 0 engines connected, 0 blocks saved (0 B, stored as 0 B), new ones go raw (unchanged), 0 restored (0 B)",
  );
  for (const { rttMsP50, rttMsP99 } of seen.targets) {
    expect(rttMsP50).toBeGreaterThan(0);
    expect(Number(rttMsP99)).toBeGreaterThanOrEqual(Number(rttMsP50));
  }

  const flushed = await runProgram(["flush", "--yes", "--config", config]);
  const [dropped, ...others] = flushed.stdout.trimEnd().split("\n");
  expect([flushed.exitCode, dropped]).toEqual([
    0,
    `kv_cold at ${String(address)}: 0 records dropped, 0 B freed`,
  ]);
  for (const line of others) expect(line).toMatch(NO_COPIES);
  const asked = await runProgram(["flush", "--config", config]);
  expect(asked.exitCode).toBe(2);
  expect(asked.stderr).toContain("add --yes");

  sidecar.signal("SIGINT");
  expect((await sidecar.ended()).exitCode).toBe(0);
  expect(existsSync(socket)).toBe(false);
  vault.signal("SIGKILL");
  await vault.ended();
  const gone = await runProgram(["status", "--config", config]);
  expect(gone.exitCode).toBe(1);
  expect(gone.stdout.match(/ DOWN /g)).toHaveLength(2);
  expect(gone.stdout).toContain("start it with `tierkv sidecar`");
  expect(gone.stdout).toContain(`kv vault at ${String(address)} does not answer`);
});

test("a reader that closes early is no failure", async () => {
  const program = start(["config", "docs"]);
  program.process.stdout?.destroy();
  const { exitCode, stderr } = await program.ended();
  expect([exitCode, stderr]).toEqual([0, ""]);
});

test.each([
  ["thrown", "throw new Error('boom')"],
  ["rejected", "void Promise.reject(new Error('boom'))"],
])("what nobody caught (%s) is one line and exit code 1", async (_how, mischief) => {
  // As soon as the program listens for such things.
  const loader = `data:text/javascript,const t = setInterval(() => { if (process.listenerCount('uncaughtException') === 0) return; clearInterval(t); ${mischief} }, 5)`;
  const env = { NODE_OPTIONS: `--import "${loader}"` };
  const argv = ["vault", "--config", write("v.toml", VAULT)];
  const { exitCode, stderr } = await runProgram(argv, { env });
  expect(exitCode).toBe(1);
  expect(stderr.trimEnd().split("\n").at(-1)).toBe("tierkv: boom (INTERNAL)");
  expect(stderr).not.toMatch(/\n\s+at /);
});
