// Owns the proof, on the real program, that `tierkv sidecar` alone is enough: it brings its own vault and takes it along.
import { existsSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { NO_COPIES, Program, runProgram } from "../support/command-line.ts";
import { processesWith } from "../support/processes.ts";
import { FakeEngine, hashesOf, makeBlocks, makeGroup } from "../support/shim-client.ts";
import { until } from "../support/vaults.ts";

/** Bytes of a block of the group that makeGroup() makes. */
const PAGE = 8192;

let dir = "";
let socket = "";
const programs: Program[] = [];

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "tierkv-alone-"));
  socket = join(dir, "tierkv", "sidecar.sock");
});

afterEach(async () => {
  for (const program of programs.splice(0)) {
    program.signal("SIGKILL");
    await program.ended();
  }
  await until(() => processesWith(dir).length === 0, "the last process to end");
  rmSync(dir, { recursive: true });
});

/** Neither a configuration nor a socket of whoever runs the tests is seen. */
const env = (): Record<string, string> => ({ HOME: dir, XDG_RUNTIME_DIR: dir });

async function start(...argv: string[]): Promise<Program> {
  const program = new Program(["sidecar", "--json", ...argv], { env: env() });
  programs.push(program);
  expect(await program.firstResult()).toMatchObject({ event: "ready", socket });
  return program;
}

function lines(program: Program): Record<string, unknown>[] {
  const text = program.stderr.trimEnd().split("\n");
  return text.map((line) => JSON.parse(line) as Record<string, unknown>);
}

test("without any file it serves with a vault of its own, which status and flush find", async () => {
  const sidecar = await start();
  expect(sidecar.stderr).toContain("the defaults hold");
  const [said] = lines(sidecar).filter(({ msg }) => String(msg).startsWith("no vault is"));
  expect(said).toMatchObject({ name: "sidecar", address: `unix:${socket}.vault` });
  const budget = Number(said?.["maxBytes"]);
  expect(budget / process.availableMemory()).toBeCloseTo(0.25, 1);
  for (const path of [socket, `${socket}.vault`]) expect(statSync(path).mode & 0o777).toBe(0o600);

  const status = await runProgram(["status", "--json"], { env: env() });
  expect(status.exitCode).toBe(0);
  expect(JSON.parse(status.stdout)).toMatchObject({
    ok: true,
    targets: [
      { target: "sidecar", address: socket, reachable: true },
      {
        target: "vault (local)",
        address: `unix:${socket}.vault`,
        reachable: true,
        role: "cold",
        maxBytes: budget,
      },
    ],
  });
  const flush = await runProgram(["flush", "--yes"], { env: env() });
  const [dropped, ...others] = flush.stdout.trimEnd().split("\n");
  expect([flush.exitCode, dropped]).toEqual([
    0,
    `vault (local) at unix:${socket}.vault: 0 records dropped, 0 B freed`,
  ]);
  for (const line of others) expect(line).toMatch(NO_COPIES);

  sidecar.signal("SIGTERM");
  expect((await sidecar.ended()).exitCode).toBe(0);
  expect(processesWith(dir)).toEqual([]);
  expect(readdirSync(join(dir, "tierkv"))).toEqual([]);
});

test("what one engine saved, attention blocks and states, the next one gets back", async () => {
  await start();
  const groups = [makeGroup(), makeGroup({ group: 1, class: "ssm", tokens: 64, layers: 1 })];
  const writer = await FakeEngine.start(socket, { groups });
  const blocks = makeBlocks("chain", 4, PAGE);
  const state = makeBlocks("state", 1, groups[1]?.["layer_bytes"] as number);
  writer.save(blocks);
  writer.save(state, 1);
  const records = async (): Promise<unknown> => {
    const { stdout } = await runProgram(["status", "--json"], { env: env() });
    return (JSON.parse(stdout) as { targets: { records: number }[] }).targets[1]?.records;
  };
  await until(async () => (await records()) === 5, "all records in the vault");
  writer.close();

  const reader = await FakeEngine.start(socket, { groups, engine: "engine-2" });
  const plan = reader.prefetchGroups([
    { group: 1, class: "ssm", hashes: hashesOf(state), from: 0 },
    { group: 0, class: "kv", hashes: hashesOf(blocks), from: 0 },
  ]);
  const view = await reader.done(plan);
  expect(view.reason).toBe("complete");
  expect(state.every((block, index) => reader.holds(view, index, block, 1))).toBe(true);
  expect(blocks.every((block, index) => reader.holds(view, index, block))).toBe(true);
  reader.close();
});

test("killed without a goodbye, its vault ends, too; the next one takes the stale socket over", async () => {
  const sidecar = await start();
  expect(processesWith(" vault ", dir)).toHaveLength(1);
  sidecar.signal("SIGKILL");
  await sidecar.ended();
  await until(() => processesWith(dir).length === 0, "the vault to end");
  expect(readdirSync(join(dir, "tierkv")).sort()).toEqual(["sidecar.sock", "sidecar.sock.lock"]);
  const next = await start();
  next.signal("SIGINT");
  expect((await next.ended()).exitCode).toBe(0);
});

test("told to, it ends when no engine was there for a while; being asked is no engine", async () => {
  const config = join(dir, "t.toml");
  writeFileSync(config, `[sidecar]\nsocket = "${socket}"\nidle_exit_s = 2\n`);
  const startMs = performance.now();
  const sidecar = await start("--exit-when-idle", "--config", config);
  await runProgram(["status", "--config", config]);
  expect((await sidecar.ended()).exitCode).toBe(0);
  expect(performance.now() - startMs).toBeGreaterThan(1900);
  expect(lines(sidecar)).toContainEqual(expect.objectContaining({ reason: "no engine for 2 s" }));
  expect(processesWith(dir)).toEqual([]);
  expect(existsSync(socket)).toBe(false);
});
