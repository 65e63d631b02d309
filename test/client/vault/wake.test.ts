// Owns the tests of waking a machine: the packet's content, its rate, and its trigger by a wanted vault that is down.
import { createSocket } from "node:dgram";
import type { Socket } from "node:dgram";
import { expect, test } from "vitest";
import { Waker } from "../../../src/client/vault/wake.ts";
import { keysOf, makeRecords, NAMESPACE } from "../../support/records.ts";
import {
  closeAfterTest,
  logger,
  openClient,
  openVault,
  SOON_MS,
  until,
} from "../../support/vaults.ts";

const MAC = "001122aabbcc";
const SLEEPERS = [{ host: "127.0.0.1", mac: MAC }];

async function card(): Promise<{ socket: Socket; packets: Buffer[] }> {
  const packets: Buffer[] = [];
  const socket = createSocket("udp4", (packet) => packets.push(packet));
  closeAfterTest({ close: () => socket.close() });
  await new Promise<void>((resolve) => socket.bind(0, "127.0.0.1", resolve));
  return { socket, packets };
}

test("F89 a wanted vault that does not answer has its machine woken, once a minute", async () => {
  const { socket, packets } = await card();
  const waker = new Waker(SLEEPERS, logger, () => ["127.0.0.1"], socket.address().port);
  const vault = await openVault();
  const onWanted = waker.callOf(vault.address);
  const client = openClient(vault, "kv", { onWanted });
  const keys = keysOf(makeRecords(1));
  const ask = (): Promise<Buffer> => client.lookup(NAMESPACE, keys, SOON_MS);
  await ask();
  expect(packets).toEqual([]);

  await vault.close();
  await until(async () => {
    await ask().catch(() => {});
    return packets.length > 0;
  }, "the packet");
  expect(packets[0]?.toString("hex")).toBe("ff".repeat(6) + "001122aabbcc".repeat(16));
  for (let again = 0; again < 5; again += 1) await ask().catch(() => {});
  // Sent last, so that earlier packets have arrived by then.
  socket.send("last", socket.address().port, "127.0.0.1");
  await until(() => String(packets.at(-1)) === "last", "the last packet");
  expect(packets.length).toBe(2);
});

test("only machines that are named are woken", () => {
  const waker = new Waker(SLEEPERS, logger);
  expect(waker.callOf("127.0.0.1:50051")).toBeDefined();
  expect(waker.callOf("127.0.0.2:50051")).toBeUndefined();
  expect(waker.callOf("unix:/run/tierkv/vault.sock")).toBeUndefined();
});
