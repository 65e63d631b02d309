// Owns the proof that the socket is private, that one sidecar owns it, and that what a dead one left is taken over.
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { chmodSync, mkdirSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import type { Server } from "node:net";
import { join } from "node:path";
import { expect, test } from "vitest";
import { listenOn as listen, ofServer } from "../../src/base/socket-file.ts";
import { testDirectory } from "../support/sidecars.ts";
import { closeAfterTest } from "../support/vaults.ts";

/** As a sidecar does it. */
function listenOn(server: Server, path: string): Promise<() => Promise<void>> {
  return listen(ofServer(server), {
    path,
    key: "[sidecar] socket",
    whenTaken: "stop the other one",
  });
}

const FILES = ["sidecar.sock", "sidecar.sock.lock"];

function newServer(): Server {
  return closeAfterTest(createServer((socket) => socket.end()));
}

/** A socket file whose owner was killed: nobody unlinked it. */
function leaveStaleSocket(path: string): void {
  const script = `require("net").createServer().listen(process.argv[1], () => process.kill(process.pid, "SIGKILL"))`;
  try {
    execFileSync(process.execPath, ["-e", script, path], { stdio: "ignore" });
  } catch {
    // Killed, as intended.
  }
  expect(statSync(path).isSocket()).toBe(true);
}

test("the directory has mode 0700 and the socket 0600, whatever the umask", async () => {
  const path = join(testDirectory(), "made", "sidecar.sock");
  const before = process.umask(0);
  try {
    await listenOn(newServer(), path);
  } finally {
    process.umask(before);
  }
  expect(statSync(path).mode & 0o777).toBe(0o600);
  expect(statSync(join(path, "..")).mode & 0o777).toBe(0o700);
  expect(readdirSync(join(path, ".."))).toEqual(FILES);
});

test("F44 a stale socket is taken over", async () => {
  const path = join(testDirectory(), "sidecar.sock");
  leaveStaleSocket(path);
  await listenOn(newServer(), path);
  expect(readdirSync(join(path, ".."))).toEqual(FILES);
});

test("a second instance is refused, and the first one keeps its socket", async () => {
  const path = join(testDirectory(), "sidecar.sock");
  await listenOn(newServer(), path);
  const { ino } = statSync(path);
  const second = newServer();
  await expect(listenOn(second, path)).rejects.toMatchObject({ code: "ADDRESS_IN_USE" });
  expect(statSync(path).ino).toBe(ino);
  expect(readdirSync(join(path, ".."))).toEqual(FILES);
  expect(second.listening).toBe(false);
});

test("of many that start together over a stale socket exactly one wins", async () => {
  const path = join(testDirectory(), "sidecar.sock");
  leaveStaleSocket(path);
  const results = await Promise.allSettled(
    Array.from({ length: 12 }, () => listenOn(newServer(), path)),
  );
  const failures = results.flatMap((result) =>
    result.status === "rejected" ? [(result.reason as { code: string }).code] : [],
  );
  expect(failures).toEqual(Array(11).fill("ADDRESS_IN_USE"));
  expect(readdirSync(join(path, ".."))).toEqual(FILES);
});

test("closing leaves nothing behind, and not the socket of a successor either way", async () => {
  const path = join(testDirectory(), "sidecar.sock");
  const stop = await listenOn(newServer(), path);
  await stop();
  expect(readdirSync(join(path, ".."))).toEqual([]);
  await listenOn(newServer(), path);
  await stop();
  expect(readdirSync(join(path, ".."))).toEqual(FILES);
});

test("a socket that somebody else serves is not taken, lock or no lock", async () => {
  const path = join(testDirectory(), "sidecar.sock");
  const other = newServer().listen(path);
  await once(other, "listening");
  await expect(listenOn(newServer(), path)).rejects.toMatchObject({ code: "ADDRESS_IN_USE" });
  expect(readdirSync(join(path, ".."))).toEqual(["sidecar.sock"]);
});

test("a directory that others may enter is refused with the fix", async () => {
  const directory = join(testDirectory(), "open");
  mkdirSync(directory);
  chmodSync(directory, 0o755);
  const start = listenOn(newServer(), join(directory, "sidecar.sock"));
  await expect(start).rejects.toMatchObject({ code: "LISTEN_FAILED" });
  await expect(start).rejects.toThrow(`mode 755 and must be 700; run \`chmod 700 ${directory}\``);
});

test("what is not a socket is never removed", async () => {
  const path = join(testDirectory(), "sidecar.sock");
  writeFileSync(path, "precious");
  await expect(listenOn(newServer(), path)).rejects.toThrow("something that is not a socket");
  expect(statSync(path).size).toBe(8);
});

test("a path that does not fit a socket address is refused with the fix", async () => {
  const path = join(testDirectory(), "x".repeat(100));
  await expect(listenOn(newServer(), path)).rejects.toThrow("set a shorter [sidecar] socket");
});
