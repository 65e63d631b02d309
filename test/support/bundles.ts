// Owns the parts of bundle tests: key files, a session in vaults, the commands, and the check of restored blocks.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect } from "vitest";
import { bundleKey } from "../../src/extras/bundle/manifest.ts";
import { runInside } from "./command-line.ts";
import { saveAll } from "./scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "./shim-client.ts";
import type { Block, EngineShape } from "./shim-client.ts";
import { openSidecar, testDirectory } from "./sidecars.ts";
import type { TestSidecar, TestSidecarOptions } from "./sidecars.ts";
import { openClient, openVault, SOON_MS, until } from "./vaults.ts";
import type { TestVault } from "./vaults.ts";

export const PAGE = 8192;
const SIGN = "1a".repeat(32);
export const SIGNER: string = bundleKey(Buffer.from(SIGN, "hex")).publicKey.toString("hex");

/** Writes a key file of mode 0600. */
export function keyFile(text: string = SIGN): string {
  const path = join(testDirectory(), "key");
  writeFileSync(path, `${text}\n`, { mode: 0o600 });
  return path;
}

export interface Machine {
  vaults: TestVault[];
  sidecar: TestSidecar;
  config: string;
}

/** Opens a sidecar with so many kv vaults, and writes their configuration. */
export async function openMachine(
  count: number,
  options: TestSidecarOptions & { vaultBytes?: number; more?: string } = {},
): Promise<Machine> {
  const { vaultBytes, more = "" } = options;
  const of = vaultBytes === undefined ? {} : { maxBytes: vaultBytes };
  const vaults = await Promise.all(Array.from({ length: count }, () => openVault(of)));
  return await machineOf(vaults, options, more);
}

/** Does the same with existing vaults. */
export async function machineOf<V extends { address: string }>(
  vaults: V[],
  options: TestSidecarOptions = {},
  more = "",
): Promise<{ vaults: V[]; sidecar: TestSidecar; config: string }> {
  const clients = vaults.map((vault) => openClient(vault));
  const own = { when: "always", waitMs: 20_000, ...options } as const;
  const sidecar = await openSidecar({ vaults: { kv: clients, ssm: null }, ...own });
  await Promise.all(clients.map((client) => client.hello(SOON_MS)));
  const config = join(testDirectory(), "tierkv.toml");
  const list = JSON.stringify(vaults.map(({ address }) => address));
  const text = `[cluster]\nkv_cold = ${list}\n[sidecar]\nsocket = "${sidecar.socketPath}"\n${more}`;
  writeFileSync(config, text);
  return { vaults, sidecar, config };
}

export const shapeOf = (blocks: number): EngineShape => ({ maxModelLen: 16 * (blocks + 1) });

/** Returns blocks of a session that the vaults know. */
export async function converse(
  { sidecar }: Pick<Machine, "sidecar">,
  session: string,
  count: number,
  page: number = PAGE,
  shape: EngineShape = shapeOf(count),
): Promise<{ engine: FakeEngine; blocks: Block[] }> {
  const engine = await FakeEngine.start(sidecar.socketPath, { ...shape, engine: session });
  const blocks = makeBlocks(session, count, page);
  await saveAll({ engine, sidecar }, blocks);
  const told = sidecar.counters.get("session_tells");
  engine.scheduler.send({
    t: "session",
    session,
    keep_s: 3600,
    release: 0,
    namespace: engine.namespace,
    tenant: 0,
    groups: [{ group: 0, class: "kv", hashes: hashesOf(blocks), from: 0 }],
  });
  await until(() => sidecar.counters.get("session_tells") > told, "the session to be told");
  return { engine, blocks };
}

/** Returns how many blocks a fresh engine gets back; each must have the right bytes. */
export async function restored(
  { sidecar }: Pick<Machine, "sidecar">,
  blocks: readonly Block[],
  shape: EngineShape = shapeOf(blocks.length),
): Promise<number> {
  const reader = await FakeEngine.start(sidecar.socketPath, { ...shape, engine: "reader" });
  const view = await reader.done(reader.prefetch(hashesOf(blocks)));
  const placed = view.placed.get(0)?.length ?? 0;
  expect(blocks.slice(0, placed).filter((block, at) => !reader.holds(view, at, block))).toEqual([]);
  reader.release(view.plan);
  return placed;
}

export interface Ran {
  exitCode: number | null;
  stderr: string;
  /** The command's JSON output. */
  result: Record<string, unknown>;
}

/** Runs `tierkv bundle` inside this process. */
export async function bundle(config: string, ...words: string[]): Promise<Ran> {
  const argv = ["bundle", ...words, "--json", "--config", config];
  const { exitCode, stdout, stderr } = await runInside(argv);
  return { exitCode, stderr, result: JSON.parse(stdout || "{}") as Record<string, unknown> };
}

/** Returns the path of a directory that does not exist yet. */
export const freshPath = (): string => join(testDirectory(), "bundle");
