// Owns the proof that hundreds of lanes with unread fetches cost a real vault little memory and other clients nothing.
// @module-tag alone
import { expect, test } from "vitest";
import { ItemStatus } from "../../src/base/block.ts";
import { KEYS_MAX, LANES_MAX } from "../../src/base/limits/general.ts";
import { ELSEWHERE, residentBytes } from "../support/crowd.ts";
import { silentLanes } from "../support/lane-wires.ts";
import { laneFrame } from "../support/raw-calls.ts";
import type { TestClient } from "../support/record-client.ts";
import { keysOf, makeRecords, NAMESPACE } from "../support/records.ts";
import { startVaultProcess } from "../support/vault-process.ts";
import { MIB, openClient, SOON_MS, until } from "../support/vaults.ts";

/** Lanes from each of two addresses; with the honest clients' lanes, the vault's maximum. */
const LANES = 240;
const ALSO_ELSEWHERE = "127.0.0.3";
/** Keys within a session's own memory, fetches that fill the shared pool, and keys that are then fetched repeatedly. */
const [OWN_KEYS, FETCHES, AGAIN] = [3_500, 12, 5_000];
/**
 * 64 KiB of answers and 128 KiB of keys for each of 512 sessions, 16 MiB for all, plus threads and open bodies. The test
 * asks for five times as much.
 */
const GROWTH_BYTES_MAX = 320 * MIB;
/** Lanes of two honest clients. */
const LANES_OF_OTHERS = 2 * LANES_MAX;
const TEST_MS_MAX = 180_000;

const RECORDS = makeRecords(4, { payloadBytes: 4 * MIB });

async function visit(client: TestClient): Promise<void> {
  const { records } = await client.take(NAMESPACE, keysOf(RECORDS.slice(0, 1)), SOON_MS);
  expect(records.get(0)?.equals(RECORDS[0]!.record)).toBe(true);
}

function flood(): Buffer {
  const [{ key }] = RECORDS as [(typeof RECORDS)[number]];
  const body = (keys: number): Buffer =>
    Buffer.concat([NAMESPACE, ...Array<Buffer>(keys).fill(key)]);
  const whole = body(KEYS_MAX);
  const asks = Array.from({ length: FETCHES }, (_, index) =>
    laneFrame("fetch", whole, { request: 2 + index }),
  );
  const again = laneFrame("fetch", body(0), { request: 1 });
  return Buffer.concat([
    laneFrame("fetch", body(OWN_KEYS), { request: 1 }),
    ...asks,
    ...Array<Buffer>(AGAIN).fill(again),
  ]);
}

test(
  "F36 hundreds of lanes that ask for all they may and read nothing cost little memory, and others are served",
  async () => {
    const vault = await startVaultProcess();
    const client = openClient(vault);
    const statuses = await client.put(NAMESPACE, RECORDS, SOON_MS);
    expect(new Set(statuses)).toEqual(new Set([ItemStatus.ACCEPTED]));
    await visit(client);
    const before = residentBytes(vault.pid);
    let most = 0;
    const sockets = [
      ...(await silentLanes(vault, ELSEWHERE, LANES)),
      ...(await silentLanes(vault, ALSO_ELSEWHERE, LANES)),
    ];
    expect((await client.stats(SOON_MS)).lanes).toBeGreaterThanOrEqual(2 * LANES);
    const bytes = flood();
    for (const socket of sockets) socket.write(bytes);
    await visit(openClient(vault));
    const isOver = async (): Promise<boolean> => {
      most = Math.max(most, residentBytes(vault.pid));
      await visit(client);
      return (await client.stats(SOON_MS)).lanes <= LANES_OF_OTHERS;
    };
    await until(isOver, "those who read nothing to be given up");
    const told = { lanes: sockets.length, grownMib: Math.round((most - before) / MIB) };
    process.stdout.write(`lanes that read nothing ${JSON.stringify(told)}\n`);
    expect(most - before).toBeLessThan(GROWTH_BYTES_MAX);
  },
  TEST_MS_MAX,
);
