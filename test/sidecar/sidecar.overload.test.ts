// Owns the proof that a crowd at a sidecar's socket, or a vault that accepts nothing, costs neither memory nor engines.
// @module-tag alone
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { GREETING_BYTES_MAX, SHIM_CONNECTIONS_MAX } from "../../src/base/limits/general.ts";
import { SidecarLink } from "../../src/control/sidecar-link.ts";
import { Program } from "../support/command-line.ts";
import { Crowd, residentBytes } from "../support/crowd.ts";
import type { Manner } from "../support/crowd.ts";
import { FakeEngine, makeBlocks, ShimClient } from "../support/shim-client.ts";
import { testDirectory } from "../support/sidecars.ts";
import { closeAfterTest, MIB, openVault, SOON_MS, until } from "../support/vaults.ts";

/** Connections, from TIERKV_TEST_CONNECTIONS; ten thousand in a long run (goal G16). */
const CONNECTIONS = Number(process.env["TIERKV_TEST_CONNECTIONS"] ?? 1_000);
const ARENA_BYTES = 64 * MIB;
const SLACK_BYTES = ARENA_BYTES / 10 + 64 * MIB;
const TEST_MS_MAX = 240_000;

async function startSidecar(): Promise<{ pid: number; socket: string }> {
  const vault = await openVault();
  const folder = testDirectory();
  const [config, socket] = [join(folder, "t.toml"), join(folder, "s.sock")];
  const text =
    `[cluster]\nrole = "inference"\nkv_cold = "${vault.address}"\n[turbo_quant]\nenabled = false\n` +
    `[sidecar]\nsocket = "${socket}"\narena_dir = "${folder}"\narena_bytes = "64MiB"\n`;
  writeFileSync(config, text);
  const program = new Program(["sidecar", "--json", "--config", config]);
  closeAfterTest({ close: () => program.signal("SIGKILL") });
  await program.firstResult();
  return { pid: program.process.pid!, socket };
}

const MANNERS: readonly Manner[] = [
  {},
  { pace: "slow", next: () => Buffer.from([0]) },
  { first: Buffer.from([0xff, 0xff, 0xff, 0xff]), next: () => Buffer.alloc(64 * 1024) },
  { first: Buffer.from([0x00, 0x00, 0x3f, 0xff]), pace: "slow", next: () => Buffer.alloc(1024) },
];

test(
  "F36 a crowd of connections at the sidecar's socket ends soon; memory and the engine that is there stay as they were",
  async () => {
    const sidecar = await startSidecar();
    const engine = await FakeEngine.start(sidecar.socket);
    const link = closeAfterTest(new SidecarLink(sidecar.socket));
    await link.hello(SOON_MS);
    for (let round = 0; round < 10; round += 1) await link.status(SOON_MS);
    const before = residentBytes(sidecar.pid);
    const crowd = new Crowd();
    for (let index = 0; index < CONNECTIONS; index += 1) {
      crowd.add({ path: sidecar.socket }, MANNERS[index % MANNERS.length]!);
    }
    let most = 0;
    const isOver = async (): Promise<boolean> => {
      await link.status(SOON_MS);
      most = Math.max(most, residentBytes(sidecar.pid));
      return crowd.closed === CONNECTIONS;
    };
    await until(isOver, "the crowd to be gone");
    const grownMib = Math.round((most - before) / MIB);
    const told = { connections: CONNECTIONS, grownMib };
    process.stdout.write(`crowd at a sidecar ${JSON.stringify(told)}\n`);
    expect(most - before).toBeLessThan(SLACK_BYTES);
    expect(engine.scheduler.isClosed).toBe(false);
    engine.save(makeBlocks("after the crowd", 4, 8192));
    await until(async () => {
      const status = await link.status(SOON_MS);
      return (status.counters["blocks_saved"] ?? 0) === 4;
    }, "its saves");
    expect(CONNECTIONS).toBeGreaterThan(SHIM_CONNECTIONS_MAX);
  },
  TEST_MS_MAX,
);

test("F37 a frame above its sender's limit is refused before its bytes are kept, with the limit", async () => {
  const { socket } = await startSidecar();
  const length = Buffer.alloc(4);
  length.writeUInt32LE(GREETING_BYTES_MAX + 1);
  const client = new ShimClient(socket);
  client.sendBytes(length);
  const { message } = await client.wait("refuse");
  expect(message).toContain(`expected 1 to ${GREETING_BYTES_MAX}`);
  await client.ended();
});
