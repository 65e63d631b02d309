// Owns the proof that `tierkv status` gets its answers from a sidecar's socket, and gives up when there is none.
import { spawn } from "node:child_process";
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdtempSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { connect, createServer } from "node:net";
import type { Server, Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { afterEach, beforeEach, expect, test } from "vitest";
import { SidecarLink } from "../../src/control/sidecar-link.ts";
import { encodeFrame, FrameDecoder } from "../../src/sidecar/socket/frames.ts";
import type { Fields } from "../../src/sidecar/socket/frames.ts";
import { openSidecar, testDirectory } from "../support/sidecars.ts";
import { closeAfterTest, openClient, openVault, until } from "../support/vaults.ts";

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
      hello: { t: "welcome", protocol: 2, sidecar: "9.9.9" },
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
  await expect(new SidecarLink(path, []).hello(1000)).rejects.toMatchObject({
    code: "SIDECAR_DOWN",
    message: `sidecar at ${path} does not answer: there is no socket; an engine with tierKV starts it, or start it with \`tierkv sidecar\``,
  });
  await listen(() => {});
  // Out of the way of what removes it.
  renameSync(path, `${path}.dead`);
  server?.close();
  await expect(new SidecarLink(`${path}.dead`).hello(1000)).rejects.toThrow(
    "nobody listens on its socket",
  );
  writeFileSync(path, "");
  await expect(new SidecarLink(path).hello(1000)).rejects.toThrow("is no socket; remove it");
});

test("where there is none, one that listens under another XDG_RUNTIME_DIR is named, and how to ask it", async () => {
  const other = `${path}.other`;
  writeFileSync(other, "");
  const asked = new SidecarLink(path, [path, `${path}.none`, other]).hello(1000);
  await expect(asked).rejects.toThrow(
    `there is no socket, but there is one at ${other}: to ask that sidecar, write [sidecar] socket = "${other}", or set XDG_RUNTIME_DIR`,
  );
});

test("silence ends at the deadline", async () => {
  await listen(() => {});
  const link = new SidecarLink(path);
  // One that runs is not to be started.
  await expect(link.hello(30)).rejects.toThrow(
    "an answer to hello took longer than 30 ms; it runs, and is busy or stuck",
  );
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
    socket.end(encodeFrame({ t: "welcome", protocol: 99, sidecar: "9.9.9" })),
  );
  await expect(new SidecarLink(path).hello(1000)).rejects.toMatchObject({
    code: "VERSION_MISMATCH",
    message: `no common protocol: the sidecar at ${path} (version 9.9.9) speaks local protocol 99, this side speaks local protocol 2; install the same release on both`,
  });
});

test("an end in the middle is an end", async () => {
  await listen((_question, socket) =>
    socket.end(encodeFrame({ t: "welcome", sidecar: "1" }).subarray(0, 7)),
  );
  await expect(new SidecarLink(path).hello(1000)).rejects.toThrow("it closed the connection");
});

const NOBODY = 65_534;
const isRoot = process.getuid?.() === 0;

test.skipIf(!isRoot).each([
  ["another user's folder", () => chownSync(dir, NOBODY, NOBODY), "belongs to user 65534"],
  ["a folder that others may write", () => chmodSync(dir, 0o777), "has mode 777, so others may"],
  ["another user's socket", () => chownSync(path, NOBODY, NOBODY), "belongs to user 65534"],
  [
    "a link to a socket",
    () => {
      renameSync(path, `${path}.real`);
      symlinkSync(`${path}.real`, path);
    },
    "is no socket",
  ],
])("F39 %s is not connected to", async (_, meddle, words) => {
  let came = 0;
  await listen(() => {});
  server?.on("connection", () => {
    came += 1;
  });
  meddle();
  const link = new SidecarLink(path);
  await expect(link.hello(1000)).rejects.toThrow(words);
  // Who came before would have been let in before.
  const later = connect(existsSync(`${path}.real`) ? `${path}.real` : path);
  sockets.add(later);
  await until(() => came > 0, "the later one");
  expect(came).toBe(1);
  chownSync(dir, 0, 0);
});

/** Binds as we are; who listens is another user. Says how many bytes came. */
const IMPOSTOR = `
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
os.setuid(int(sys.argv[2]))
server.listen(4)
print("ready", flush=True)
peer, _ = server.accept()
try:
    print(len(peer.recv(4096)), flush=True)
except ConnectionError:
    print(0, flush=True)
`;

test.skipIf(!isRoot || !existsSync("/usr/bin/python3"))(
  "F39 another user who listens hears nothing",
  async () => {
    const impostor = spawn("/usr/bin/python3", ["-c", IMPOSTOR, path, String(NOBODY)], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    const lines = createInterface({ input: impostor.stdout })[Symbol.asyncIterator]();
    try {
      expect((await lines.next()).value).toBe("ready");
      const link = new SidecarLink(path);
      await expect(link.hello(10_000)).rejects.toThrow("another user listens on its socket");
      link.close();
      expect((await lines.next()).value).toBe("0");
    } finally {
      impostor.kill("SIGKILL");
    }
  },
);

test("a status that has a vault's disk and archive comes through the socket", async () => {
  const archive = { url: `file://${testDirectory()}`, maxBytes: 64 << 20, afterS: 300 };
  const kept = { durability: "none", diskTtlS: null, archive } as const;
  const vault = await openVault({
    disk: { dataDir: testDirectory(), diskBytes: 64 << 20, ...kept },
  });
  const sidecar = await openSidecar({ vaults: { kv: openClient(vault), ssm: null } });
  const link = new SidecarLink(sidecar.socketPath);
  closeAfterTest(link);
  await link.hello();
  await until(async () => {
    const { vaults } = await link.status();
    return vaults.kv[0]?.seen?.disk?.archive?.failing === false;
  }, "the archive in the status");
});
