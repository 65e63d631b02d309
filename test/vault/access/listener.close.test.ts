// Owns the proof that a connection handed to JavaScript ends with its listener and throws nothing.
import { spawn } from "node:child_process";
import { once } from "node:events";
import type { Socket } from "node:net";
import { expect, test } from "vitest";
import { splitAddress } from "../../../src/base/hosts.ts";
import { closeStore, createStore } from "../../../src/base/native.ts";
import { sleep } from "../../../src/base/time.ts";
import { VaultListener } from "../../../src/vault/access/listener.ts";
import { closeAfterTest, MIB } from "../../support/vaults.ts";

const CALLERS = 20;
/** Preface of a gRPC connection. */
const PREFACE = String.raw`PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n`;
/** Script of a separate process, because this one is blocked while the connections arrive. */
const CALLER = `
const { connect } = require("node:net");
const [host, port, count] = process.argv.slice(1);
const open = () => connect({ host, port: Number(port) }).on("error", () => {});
const sockets = Array.from({ length: Number(count) }, open);
const isOpen = (socket) => new Promise((resolve) => socket.once("connect", resolve));
Promise.all(sockets.map(isOpen)).then(() => process.stdout.write("open"));
process.stdin.once("data", () => sockets.forEach((socket) => socket.write("${PREFACE}")));
`;
/** Time for the core to queue them; if it is too short, the test shows less and does not fail. */
const QUEUED_MS = 300;
const LATE_MS = 100;

test("a connection handed over after the listener was closed is dropped", async () => {
  const store = createStore({ maxBytes: 64 * MIB, maxRecordBytes: MIB, recordClass: 1 });
  closeAfterTest({ close: () => closeStore(store) });
  const came: Socket[] = [];
  const listener = await VaultListener.open(
    { host: "127.0.0.1", port: 0, text: "127.0.0.1:0" },
    {
      store,
      maxRecordBytes: MIB,
      maxReservedBytes: MIB,
      onSocket: (socket) => came.push(socket),
      security: null,
      gate: null,
      traces: false,
    },
  );
  closeAfterTest(listener);
  const thrown: unknown[] = [];
  const onThrown = (error: unknown): unknown => thrown.push(error);
  process.on("uncaughtException", onThrown);
  closeAfterTest({ close: () => process.off("uncaughtException", onThrown) });
  const { host, port } = splitAddress(listener.address);
  const caller = spawn(process.execPath, ["-e", CALLER, host, `${port}`, `${CALLERS}`]);
  closeAfterTest({ close: () => caller.kill("SIGKILL") });
  await once(caller.stdout, "data");
  caller.stdin.write("go");
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, QUEUED_MS);
  listener.close();
  await sleep(LATE_MS);
  expect(thrown).toEqual([]);
  expect(came).toEqual([]);
});
