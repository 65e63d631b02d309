// Owns the proof that a server says where it listens, and which key to change where it cannot.
import { createServer } from "node:net";
import type { Server } from "node:net";
import { expect, onTestFinished, test } from "vitest";
import { listenAt } from "../../src/base/listen.ts";

function newServer(): Server {
  const server = createServer();
  onTestFinished(() => void server.close());
  return server;
}

test("the real port is said, and a taken or foreign address is refused with the key", async () => {
  const at = await listenAt(newServer(), { host: "127.0.0.1", port: 0 }, "[x] listen");
  expect(at).toMatch(/^127\.0\.0\.1:[1-9]\d*$/);
  const port = Number(at.split(":")[1]);
  await expect(
    listenAt(newServer(), { host: "127.0.0.1", port }, "[x] listen"),
  ).rejects.toMatchObject({
    code: "ADDRESS_IN_USE",
    details: { address: at, fix: "stop that process or set another [x] listen" },
  });
  await expect(
    listenAt(newServer(), { host: "192.0.2.1", port: 0 }, "[x] listen"),
  ).rejects.toMatchObject({
    code: "LISTEN_FAILED",
    details: { address: "192.0.2.1:0", fix: "set [x] listen to an address of this machine" },
  });
});
