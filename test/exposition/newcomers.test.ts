// Owns the proof that connections which others hold at the metrics endpoint keep no probe out, and stay bounded.
import { once } from "node:events";
import { connect } from "node:net";
import type { Socket } from "node:net";
import { expect, test } from "vitest";
import {
  SCRAPE_ADDRESS_CONNECTIONS_MAX as EACH,
  SCRAPE_CONNECTIONS_MAX as MOST,
} from "../../src/base/limits/general.ts";
import { startScrapeServer } from "../../src/exposition/server.ts";
import { closeAfterTest, until } from "../support/vaults.ts";

async function open(): Promise<{ url: string; port: number }> {
  const listen = { host: "127.0.0.1", port: 0 };
  const read = (): Promise<string> => Promise.resolve("");
  const server = await startScrapeServer({ listen, key: "[vault] x", read, trouble: () => null });
  closeAfterTest(server);
  return { url: server.url, port: Number(new URL(server.url).port) };
}

/** A connection from an address of the loopback that sends nothing. */
async function hold(port: number, localAddress: string): Promise<Socket> {
  const socket = connect({ port, host: "127.0.0.1", localAddress });
  closeAfterTest({ close: () => socket.destroy() });
  socket.on("error", () => {});
  await once(socket, "connect");
  return socket.resume();
}

const openOf = (sockets: readonly Socket[]): number =>
  sockets.filter((socket) => socket.readyState === "open").length;

test("whoever holds as many connections as one address may, from there as well, keeps no probe out", async () => {
  const { url, port } = await open();
  const held: Socket[] = [];
  for (let at = 0; at < EACH; at += 1) held.push(await hold(port, "127.0.0.1"));
  expect((await fetch(url)).status).toBe(200);
  await until(() => openOf(held) < EACH, "the oldest to leave");
  expect(openOf(held)).toBe(EACH - 1);
});

test("a crowd of many addresses keeps no probe out, and no more connections than MOST are open", async () => {
  const { url, port } = await open();
  const held: Socket[] = [];
  for (let at = 0; at < MOST + EACH; at += 1) {
    held.push(await hold(port, `127.0.1.${1 + Math.floor(at / (EACH / 2))}`));
  }
  await until(() => openOf(held) <= MOST, "the oldest to leave");
  const response = await fetch(url);
  expect(response.status).toBe(200);
  await until(() => openOf(held) < MOST, "room for the probe");
});
