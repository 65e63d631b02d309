// Owns the proof of a sidecar's socket: hello, roles, versions, bad frames, slow readers, status.
import { chmodSync, statSync } from "node:fs";
import { dirname } from "node:path";
import { Writable } from "node:stream";
import { expect, test } from "vitest";
import { HELLO_TIMEOUT_MS, SHIM_CONNECTIONS_MAX } from "../../src/base/limits/general.ts";
import { createLogger } from "../../src/base/log.ts";
import { coreInfo } from "../../src/base/native.ts";
import { encodeFrame } from "../../src/sidecar/socket/frames.ts";
import { FakeEngine, helloFrame, ShimClient } from "../support/shim-client.ts";
import { openSidecar } from "../support/sidecars.ts";
import { until } from "../support/vaults.ts";

async function refusal(client: ShimClient): Promise<{ code: string; message: string }> {
  const { code, message } = await client.wait("refuse");
  await client.ended();
  return { code: code as string, message: message as string };
}

test("the socket has mode 0600, its directory 0700", async () => {
  const { socketPath } = await openSidecar();
  expect(statSync(socketPath).mode & 0o777).toBe(0o600);
  expect(statSync(dirname(socketPath)).mode & 0o777).toBe(0o700);
});

test("a second sidecar on the same socket is refused, the first one serves on", async () => {
  const { socketPath } = await openSidecar();
  await expect(openSidecar({ socket: socketPath })).rejects.toMatchObject({
    code: "ADDRESS_IN_USE",
  });
  const client = new ShimClient(socketPath);
  client.send(helloFrame({ role: "status" }));
  await client.wait("welcome");
});

test("a closed sidecar leaves the place to the next one", async () => {
  const first = await openSidecar();
  await first.close();
  const second = await openSidecar({ socket: first.socketPath });
  const client = new ShimClient(second.socketPath);
  client.send(helloFrame({ role: "status" }));
  await client.wait("welcome");
});

test("a directory open to others is refused", async () => {
  const { socketPath, close } = await openSidecar();
  await close();
  chmodSync(dirname(socketPath), 0o750);
  await expect(openSidecar({ socket: socketPath })).rejects.toMatchObject({
    code: "LISTEN_FAILED",
  });
});

test("the welcome names version and budgets", async () => {
  const { socketPath } = await openSidecar({ waitMs: 1234, stallMs: 321 });
  const client = new ShimClient(socketPath);
  client.send(helloFrame({}));
  expect(await client.wait("welcome")).toMatchObject({
    protocol: 2,
    sidecar: coreInfo().version,
    wait_ms: 1234,
    stall_ms: 321,
  });
});

test("F24 a foreign version is refused naming both", async () => {
  const { socketPath } = await openSidecar();
  const client = new ShimClient(socketPath);
  client.send({ t: "hello", protocol: 99, shim: "7.8.9" });
  const { code, message } = await refusal(client);
  expect(code).toBe("VERSION_MISMATCH");
  expect(message).toContain(
    "shim 7.8.9 speaks local protocol 99, this side speaks local protocol 2",
  );
});

test("a refusal is logged once for each cause, whatever numbers are in it, and counted each time", async () => {
  const lines: string[] = [];
  const destination = new Writable({
    write(chunk: Buffer, _encoding, done): void {
      lines.push(chunk.toString());
      done();
    },
  });
  const logger = createLogger("sidecar", { level: "info", tty: false, destination });
  const { socketPath, counters } = await openSidecar({ logger });
  for (const protocol of [97, 98, 99]) {
    const client = new ShimClient(socketPath);
    client.send({ t: "hello", protocol, shim: "7.8.9" });
    await refusal(client);
  }
  const early = new ShimClient(socketPath);
  early.send({ t: "ping", n: 1 });
  await refusal(early);
  expect(counters.get("frames_refused")).toBe(4);
  const said = lines.filter((line) => line.includes("connection closed by the sidecar"));
  expect(said).toHaveLength(2);
});

test("a silent connection is refused in time", async () => {
  const { socketPath } = await openSidecar();
  const client = new ShimClient(socketPath);
  const startMs = performance.now();
  expect(await refusal(client)).toEqual({
    code: "DEADLINE",
    message: `the hello took longer than ${HELLO_TIMEOUT_MS} ms`,
  });
  expect(performance.now() - startMs).toBeGreaterThan(HELLO_TIMEOUT_MS - 50);
});

test.each([
  ["anything before hello", { t: "ping", n: 1 }, 't = "ping": expected hello first'],
  ["no map", null, "not a map"],
])("%s closes the connection with the reason", async (_name, frame, reason) => {
  const { socketPath, counters } = await openSidecar();
  const client = new ShimClient(socketPath);
  if (frame === null) client.sendBytes(Buffer.from([1, 0, 0, 0, 0x01]));
  else client.send(frame);
  const { code, message } = await refusal(client);
  expect(code).toBe("BAD_FRAME");
  expect(message).toContain(reason);
  expect(counters.get("frames_refused")).toBe(1);
});

test.each([
  ["scheduler", { t: "mapped", arena: 1 }, "expected role worker"],
  ["worker", { t: "release", req: "r", plan: 1 }, "expected role scheduler"],
  ["worker", { t: "status" }, "expected role status"],
  ["status", { t: "mapped", arena: 1 }, "expected role worker"],
])("a %s may not send %j", async (role, frame, reason) => {
  const { socketPath } = await openSidecar();
  const client = new ShimClient(socketPath);
  client.send(helloFrame({ role }));
  client.send(frame);
  expect((await refusal(client)).message).toContain(reason);
});

test("a second hello is refused", async () => {
  const { socketPath } = await openSidecar();
  const client = new ShimClient(socketPath);
  client.send(helloFrame({}));
  client.send(helloFrame({}));
  expect((await refusal(client)).message).toContain("expected one hello");
});

test("a bad frame ends its own engine only", async () => {
  const { socketPath } = await openSidecar();
  const healthy = await FakeEngine.start(socketPath, { engine: "healthy" });
  const sick = await FakeEngine.start(socketPath, { engine: "sick" });
  sick.scheduler.sendBytes(Buffer.from([255, 255, 255, 255]));
  expect((await refusal(sick.scheduler)).code).toBe("BAD_FRAME");
  await sick.workers[0]!.ended();
  healthy.scheduler.send({ t: "ping", n: 7 });
  expect(await healthy.scheduler.wait("pong")).toEqual({ t: "pong", n: 7 });
  expect(healthy.workers[0]!.isClosed).toBe(false);
});

test("a frame that comes byte by byte is read", async () => {
  const { socketPath } = await openSidecar();
  const client = new ShimClient(socketPath);
  const bytes = Buffer.concat([encodeFrame(helloFrame({})), encodeFrame({ t: "ping", n: 3 })]);
  for (const byte of bytes) {
    client.sendBytes(Buffer.from([byte]));
    await new Promise(setImmediate);
  }
  expect(await client.wait("pong")).toEqual({ t: "pong", n: 3 });
});

test("a peer that does not read is cut off before much piles up", async () => {
  const { socketPath, counters } = await openSidecar();
  const client = new ShimClient(socketPath);
  client.send(helloFrame({ role: "status" }));
  await client.wait("welcome");
  client.pause();
  // Each answer has several hundred bytes; the kernel buffers some of them.
  for (let count = 0; count < 60_000; count += 1) client.send({ t: "status" });
  await until(() => counters.get("frames_refused") === 1, "the cut");
});

test("F36 connections above the limit are refused, later ones are taken again", async () => {
  const { socketPath } = await openSidecar();
  const clients = Array.from({ length: SHIM_CONNECTIONS_MAX }, () => new ShimClient(socketPath));
  for (const client of clients) client.send(helloFrame({ role: "status" }));
  for (const client of clients) await client.wait("welcome");
  expect((await refusal(new ShimClient(socketPath))).code).toBe("OVERLOAD");
  clients[0]!.close();
  await clients[0]!.ended();
  await until(async () => {
    const next = new ShimClient(socketPath);
    next.send(helloFrame({ role: "status" }));
    await until(() => next.frames.length > 0, "an answer");
    const isTaken = next.got("welcome").length === 1;
    next.close();
    return isTaken;
  }, "a free place");
});

test("counts of shims are added up under their names, bounded", async () => {
  const { socketPath, counters } = await openSidecar();
  const client = new ShimClient(socketPath);
  client.send(helloFrame({}));
  client.send({ t: "counts", counters: { dropped_save_no_slot: 3, bytes: 2 ** 40 } });
  client.send({ t: "counts", counters: { dropped_save_no_slot: 4 } });
  const many = Object.fromEntries(Array.from({ length: 200 }, (_, index) => [`name_${index}`, 1]));
  client.send({ t: "counts", counters: many });
  client.send({ t: "ping", n: 0 });
  await client.wait("pong");
  expect(counters.get("shim_dropped_save_no_slot")).toBe(7);
  expect(counters.get("shim_bytes")).toBe(2 ** 40);
  expect(counters.get("shim_other")).toBe(200 - 126);
});

test("status tells what there is", async () => {
  const { socketPath } = await openSidecar();
  const engine = await FakeEngine.start(socketPath);
  const client = new ShimClient(socketPath);
  client.send(helloFrame({ role: "status" }));
  client.send({ t: "status" });
  const { status } = await client.wait("status_reply");
  expect(status).toMatchObject({
    version: coreInfo().version,
    pid: process.pid,
    socket: socketPath,
    vaults: { kv: [], ssm: [] },
    engines: [
      {
        id: engine.id,
        model: "test/model",
        namespace: engine.namespace.toString("hex").slice(0, 16),
        world: 1,
        workers: 1,
        hasScheduler: true,
        isRestoring: true,
        plans: 0,
        arena: { slotBytes: 8192 },
      },
    ],
    counters: { engines_connected: 1 },
  });
});

test("an engine's blocks that are left to save are in its status until it says otherwise", async () => {
  const sidecar = await openSidecar();
  const engine = await FakeEngine.start(sidecar.socketPath);
  const isSaving = (): boolean => sidecar.status().engines[0]!.isSaving;
  expect(isSaving()).toBe(false);
  engine.scheduler.send({ t: "counts", counters: {}, saving: 1 });
  await until(isSaving, "the engine to save");
  engine.scheduler.send({ t: "counts", counters: {} });
  engine.scheduler.send({ t: "counts", counters: {}, saving: 0 });
  await until(() => !isSaving(), "all to be saved");
});

test("closing the sidecar ends every connection", async () => {
  const { socketPath, close } = await openSidecar();
  const engine = await FakeEngine.start(socketPath);
  const silent = new ShimClient(socketPath);
  await close();
  await engine.scheduler.ended();
  await engine.workers[0]!.ended();
  await silent.ended();
});
