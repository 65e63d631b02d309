// Owns the proof that `tierkv status` gets its answers from a sidecar's socket, and gives up when there is none.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import type { Server, Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { SidecarLink } from "../../src/cli/sidecar-link.ts";
import { encodeFrame, FrameDecoder } from "../../src/sidecar/frames.ts";
import type { Fields } from "../../src/sidecar/frames.ts";

let dir = "";
let path = "";
let server: Server | null = null;
const sockets = new Set<Socket>();

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "tierkv-link-"));
  path = join(dir, "s.sock");
});

afterEach(() => {
  for (const socket of sockets) socket.destroy();
  sockets.clear();
  server?.close();
  server = null;
  rmSync(dir, { recursive: true });
});

/** A sidecar that answers as told. */
async function listen(answer: (question: Fields, socket: Socket) => void): Promise<void> {
  server = createServer((socket) => {
    sockets.add(socket);
    const decoder = new FrameDecoder("test");
    socket.on("data", (chunk: Buffer) => {
      decoder.push(chunk);
      for (let frame = decoder.next(); frame !== null; frame = decoder.next())
        answer(frame, socket);
    });
  });
  await new Promise<void>((resolve) => {
    server?.listen(path, resolve);
  });
}

test("says hello as status, pings, and reads the status, also from crumbs", async () => {
  const asked: unknown[] = [];
  await listen(({ t, role }, socket) => {
    asked.push(role ?? t);
    const answers: Record<string, object> = {
      hello: { t: "welcome", protocol: 1, sidecar: "9.9.9" },
      ping: { t: "pong", n: 0 },
      status: { t: "status_reply", status: { engines: 3 } },
    };
    for (const byte of encodeFrame({ ...answers[String(t)] })) socket.write(Uint8Array.of(byte));
  });
  const link = new SidecarLink(path);
  expect(await link.hello(1000)).toBe("9.9.9");
  await link.ping(1000);
  expect(await link.status(1000)).toEqual({ engines: 3 });
  link.close();
  expect(asked).toEqual(["status", "ping", "status"]);
});

test("no socket, and a socket nobody listens on, are told apart", async () => {
  await expect(new SidecarLink(path).hello(1000)).rejects.toMatchObject({
    code: "SIDECAR_DOWN",
    message: `sidecar at ${path} does not answer: there is no socket; start it with \`tierkv sidecar\``,
  });
  writeFileSync(path, "");
  await expect(new SidecarLink(path).hello(1000)).rejects.toThrow("nobody listens on its socket");
});

test("silence ends at the deadline", async () => {
  await listen(() => {});
  const link = new SidecarLink(path);
  await expect(link.hello(30)).rejects.toThrow("an answer to hello took longer than 30 ms");
  link.close();
});

test("a refusal is told in the sidecar's words", async () => {
  await listen((_question, socket) =>
    socket.end(encodeFrame({ t: "refuse", code: "X", message: "no common protocol" })),
  );
  await expect(new SidecarLink(path).hello(1000)).rejects.toThrow("no common protocol");
});

test("a sidecar of another protocol is refused by name", async () => {
  await listen((_question, socket) =>
    socket.end(encodeFrame({ t: "welcome", protocol: 2, sidecar: "9.9.9" })),
  );
  await expect(new SidecarLink(path).hello(1000)).rejects.toMatchObject({
    code: "VERSION_MISMATCH",
    message: `no common protocol: the sidecar at ${path} (version 9.9.9) speaks local protocol 2, this side speaks local protocol 1; install the same release on both`,
  });
});

test("an end in the middle is an end", async () => {
  await listen((_question, socket) =>
    socket.end(encodeFrame({ t: "welcome", sidecar: "1" }).subarray(0, 7)),
  );
  await expect(new SidecarLink(path).hello(1000)).rejects.toThrow("it closed the connection");
});
