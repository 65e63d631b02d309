// Owns the proof that frames with a descriptor keep their place among others, also on a full socket.
import { once } from "node:events";
import { connect, createServer } from "node:net";
import type { Socket } from "node:net";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { Arena } from "../../../src/arena/arena.ts";
import { PASS_RETRY_MS } from "../../../src/base/limits/general.ts";
import type { ArenaId } from "../../../src/base/native.ts";
import type * as Native from "../../../src/base/native.ts";
import { encodeFrame, FrameDecoder } from "../../../src/sidecar/socket/frames.ts";
import { Outgoing } from "../../../src/sidecar/socket/outgoing.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, MIB, until } from "../../support/vaults.ts";

/** Whether the socket is full, for the next frames with a descriptor; later frames ask the kernel. */
const full = vi.hoisted((): boolean[] => []);
vi.mock("../../../src/base/native.ts", async (importOriginal) => {
  const native = await importOriginal<typeof Native>();
  const sendArena: typeof native.sendArena = (...args) =>
    full.shift() === true ? 0 : native.sendArena(...args);
  return { ...native, sendArena };
});

/** Returns both ends of a Unix socket, ours first. */
async function pair(): Promise<[Socket, Socket]> {
  const path = join(testDirectory(), "pair.sock");
  const server = createServer();
  await new Promise<void>((resolve) => {
    server.listen(path, resolve);
  });
  const theirs = connect(path);
  const [ours] = (await once(server, "connection")) as [Socket];
  closeAfterTest({
    close: () => {
      ours.destroy();
      theirs.destroy();
      server.close();
    },
  });
  return [ours, theirs];
}

function arena(): Arena {
  return closeAfterTest(new Arena({ slotBytes: 4096, slotCount: 1, dir: null }));
}

function framesOf(socket: Socket): unknown[] {
  const numbers: unknown[] = [];
  const decoder = new FrameDecoder("the other side");
  socket.on("data", (chunk: Buffer) => {
    decoder.push(chunk);
    for (let frame = decoder.next(); frame !== null; frame = decoder.next())
      numbers.push(frame["n"]);
  });
  return numbers;
}

test("frames with and without a descriptor arrive in the order of their sending", async () => {
  const [ours, theirs] = await pair();
  const outgoing = new Outgoing(ours);
  const { id } = arena();
  const filler = encodeFrame({ n: 0, filler: Buffer.alloc(2 * MIB) });
  outgoing.write(filler);
  expect(ours.writableLength).toBeGreaterThan(0);
  outgoing.pass(encodeFrame({ n: 1 }), id);
  outgoing.write(encodeFrame({ n: 2 }));
  outgoing.pass(encodeFrame({ n: 3 }), id);
  outgoing.write(encodeFrame({ n: 4 }));
  expect(outgoing.waiting).toBeGreaterThan(ours.writableLength);
  const numbers = framesOf(theirs);
  // A slow reader, so that the kernel has room now and then while Node still holds bytes.
  theirs.on("data", () => {
    theirs.pause();
    setTimeout(() => theirs.resume(), 2 * PASS_RETRY_MS);
  });
  await until(() => numbers.length === 5, "all five");
  expect(numbers).toEqual([0, 1, 2, 3, 4]);
  expect(outgoing.waiting).toBe(0);
});

test("the frames of a turn of the event loop arrive in one piece, and long ones at once", async () => {
  const [ours, theirs] = await pair();
  const numbers = framesOf(theirs);
  let pieces = 0;
  theirs.on("data", () => (pieces += 1));
  const outgoing = new Outgoing(ours);
  outgoing.write(encodeFrame({ n: 0 }));
  await Promise.resolve().then(() => outgoing.write(encodeFrame({ n: 1 })));
  expect(outgoing.waiting).toBeGreaterThan(0);
  await until(() => numbers.length === 2, "both");
  expect([numbers, pieces]).toEqual([[0, 1], 1]);
  outgoing.write(encodeFrame({ n: 2 }));
  outgoing.write(encodeFrame({ n: 3, filler: Buffer.alloc(2 * MIB) }));
  expect(ours.writableLength).toBeGreaterThan(0);
  await until(() => numbers.length === 4, "all four");
  expect(numbers).toEqual([0, 1, 2, 3]);
});

test("a socket that is full is tried again", async () => {
  const [ours, theirs] = await pair();
  const outgoing = new Outgoing(ours);
  const { id } = arena();
  theirs.pause();
  let sent = 0;
  // Node's own buffer is empty first, so the kernel's buffer fills up in the end.
  while (ours.writableLength === 0) {
    outgoing.pass(encodeFrame({ n: sent }), id);
    sent += 1;
    if (outgoing.waiting > 0) break;
  }
  outgoing.write(encodeFrame({ n: sent }));
  const numbers = framesOf(theirs);
  theirs.resume();
  await until(() => numbers.length === sent + 1, "all frames");
  expect(numbers).toEqual(Array.from({ length: sent + 1 }, (_, n) => n));
});

test("frames that follow ones with a descriptor stay behind them when the socket is full again for the second", async () => {
  const [ours, theirs] = await pair();
  const numbers = framesOf(theirs);
  const outgoing = new Outgoing(ours);
  const { id } = arena();
  full.push(true, false, true);
  for (const n of [0, 1]) outgoing.pass(encodeFrame({ n }), id);
  outgoing.write(encodeFrame({ n: 2 }));
  await until(() => numbers.length === 3, "all three");
  expect(numbers).toEqual([0, 1, 2]);
});

test("a peer that is gone, and an arena that is none, end the connection", async () => {
  const [ours, theirs] = await pair();
  const outgoing = new Outgoing(ours);
  const { id } = arena();
  ours.on("error", () => {});
  outgoing.pass(encodeFrame({ n: 0 }), (id + 1_000_000) as ArenaId);
  expect(ours.destroyed).toBe(true);
  outgoing.pass(encodeFrame({ n: 1 }), id);
  const numbers = framesOf(theirs);
  await once(theirs, "close");
  expect(numbers).toEqual([]);
});
