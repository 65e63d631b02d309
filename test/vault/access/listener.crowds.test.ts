// Owns the proof that silent connections keep no client with a credential out: over lanes and gRPC, 100 of 100.
// @module-tag alone
import { connect } from "node:net";
import type { Socket } from "node:net";
import { expect, test } from "vitest";
import { ItemStatus } from "../../../src/base/block.ts";
import { splitAddress } from "../../../src/base/hosts.ts";
import { openClosedVault, shown, TOKENS } from "../../support/closed-vaults.ts";
import type { ClosedVault } from "../../support/closed-vaults.ts";
import { keysOf, makeRecords, NAMESPACE } from "../../support/records.ts";
import { closeAfterTest, openClient, SOON_MS, until } from "../../support/vaults.ts";

const VISITS = 100;
/** Interval at which refused connections return. */
const AGAIN_MS = 3_000;
/** Bound on the median, because a single visit may meet a busy machine. */
const USUAL_MS = 1_000;
const SLOWEST_MS = 5_000;
const TEST_MS_MAX = 180_000;

/** Keeps `each` silent connections open from each address; returns a function for the open ones. */
function besiege(vault: ClosedVault, from: readonly string[], each: number): () => number {
  const open = new Set<Socket>();
  const timers = new Set<NodeJS.Timeout>();
  let isOver = false;
  const come = (localAddress: string): void => {
    const socket = connect({ ...splitAddress(vault.address), localAddress });
    socket.on("connect", () => open.add(socket)).on("error", () => {});
    socket.resume().on("close", () => {
      open.delete(socket);
      if (isOver) return;
      const timer = setTimeout(() => {
        timers.delete(timer);
        come(localAddress);
      }, AGAIN_MS);
      timers.add(timer);
    });
  };
  for (const address of from) for (let index = 0; index < each; index += 1) come(address);
  const close = (): void => {
    isOver = true;
    for (const timer of timers) clearTimeout(timer);
    for (const socket of open) socket.destroy();
  };
  closeAfterTest({ close });
  return () => open.size;
}

const RECORDS = makeRecords(1, { payloadBytes: 1000 });

/** Lets a new client in and reads a record. */
async function enter(vault: ClosedVault, way: "lanes" | "gRPC"): Promise<void> {
  const client = openClient(vault, "kv", { security: shown(vault, TOKENS.read) });
  await client.hello(SOON_MS);
  if (way === "gRPC") {
    expect((await client.stats(SOON_MS)).records).toBe(1);
  } else {
    const { records } = await client.take(NAMESPACE, keysOf(RECORDS), SOON_MS);
    expect(records.get(0)?.equals(RECORDS[0]!.record)).toBe(true);
  }
  client.close();
}

test.each<[string, readonly string[], number]>([
  ["64 from the same address", ["127.0.0.1"], 64],
  ["512 from two other addresses", ["127.0.0.2", "127.0.0.3"], 256],
])(
  "F36 beside silent connections, %s, 100 of 100 with a token come in",
  async (_name, from, each) => {
    const vault = await openClosedVault();
    const writer = openClient(vault, "kv", { security: shown(vault, TOKENS.write) });
    const statuses = await writer.put(NAMESPACE, RECORDS, SOON_MS);
    expect(statuses).toEqual([ItemStatus.ACCEPTED]);
    const open = besiege(vault, from, each);
    await until(() => open() >= Math.min(64, each), "the crowd to be there");
    const times: number[] = [];
    for (let visit = 0; visit < VISITS; visit += 1) {
      const begunMs = performance.now();
      await enter(vault, visit % 2 === 0 ? "lanes" : "gRPC");
      times.push(performance.now() - begunMs);
    }
    times.sort((a, b) => a - b);
    const [median, slowest] = [times[VISITS / 2] ?? 0, times.at(-1) ?? 0];
    const told = { silent: open(), medianMs: Math.round(median), slowestMs: Math.round(slowest) };
    process.stdout.write(`beside silent connections ${JSON.stringify(told)}\n`);
    expect(times).toHaveLength(VISITS);
    expect(median).toBeLessThan(USUAL_MS);
    expect(slowest).toBeLessThan(SLOWEST_MS);
  },
  TEST_MS_MAX,
);
