// Owns the socket file: a private directory, one live owner, mode 0600 before anybody can see it, and removal of what a dead owner left.
import { chmod, lstat, mkdir, rename, stat, unlink } from "node:fs/promises";
import { connect } from "node:net";
import type { Server } from "node:net";
import { dirname } from "node:path";
import { TierkvError, toTierkvError } from "../errors.ts";
import { SOCKET_PATH_BYTES_MAX, SOCKET_PROBE_MS } from "../limits.ts";
import { lockFile, unlockFile } from "../native.ts";
import { randomId } from "../time.ts";

/** Bits that let group or others in. */
const FOREIGN_BITS = 0o077;

/**
 * Makes `server` listen on `path` and returns how to stop that and take the file away again.
 *
 * A lock beside the socket, which the system frees when its holder dies, lets one sidecar at a time through. The socket
 * is bound under a private name, gets its mode, and only then takes its place.
 */
export async function listenOn(server: Server, path: string): Promise<() => Promise<void>> {
  await prepareDirectory(path);
  const lock = lockFile(`${path}.lock`);
  if (lock === null) throw inUse(path);
  try {
    await checkPlace(path);
    const own = await bind(server, path);
    let isOurs = true;
    return async () => {
      if (!isOurs) return;
      isOurs = false;
      const now = await stat(path).catch(() => null);
      if (now?.ino === own.ino && now.dev === own.dev) await unlink(path);
      server.close();
      unlockFile(lock);
    };
  } catch (error) {
    server.close();
    unlockFile(lock);
    throw toTierkvError(error);
  }
}

async function prepareDirectory(path: string): Promise<void> {
  const directory = dirname(path);
  await mkdir(directory, { recursive: true, mode: 0o700 });
  const found = await lstat(directory);
  const fix = `run \`chmod 700 ${directory}\` as its owner, or set another [sidecar] socket`;
  if (!found.isDirectory()) throw failed(path, `${directory} is not a directory`, fix);
  if (found.uid !== process.getuid?.()) {
    throw failed(path, `${directory} belongs to user ${found.uid}`, fix);
  }
  if ((found.mode & FOREIGN_BITS) !== 0) {
    const mode = (found.mode & 0o777).toString(8);
    throw failed(path, `${directory} has mode ${mode} and must be 700`, fix);
  }
}

/** What is there may be replaced only if it is a socket that nobody listens on: the lock guards against sidecars only. */
async function checkPlace(path: string): Promise<void> {
  const found = await lstat(path).catch(() => null);
  if (found === null) return;
  if (!found.isSocket()) {
    const fix = "remove it, or set another [sidecar] socket";
    throw failed(path, "something that is not a socket is there", fix);
  }
  if (await answers(path)) throw inUse(path);
}

async function bind(server: Server, path: string): Promise<{ ino: number; dev: number }> {
  const privatePath = `${path}.${randomId(3)}`;
  checkLength(path, privatePath);
  await listen(server, privatePath, path);
  try {
    await chmod(privatePath, 0o600);
    const own = await stat(privatePath);
    await rename(privatePath, path);
    return own;
  } catch (error) {
    await unlink(privatePath).catch(() => {});
    throw error;
  }
}

function checkLength(path: string, privatePath: string): void {
  const bytes = Buffer.byteLength(privatePath);
  if (bytes <= SOCKET_PATH_BYTES_MAX) return;
  const most = SOCKET_PATH_BYTES_MAX - (bytes - Buffer.byteLength(path));
  throw failed(path, `its path is longer than ${most} bytes`, "set a shorter [sidecar] socket");
}

function listen(server: Server, privatePath: string, path: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const onError = (error: Error): void => {
      reject(failed(path, toTierkvError(error).message, "set another [sidecar] socket"));
    };
    server.once("error", onError);
    server.listen(privatePath, () => {
      server.off("error", onError);
      resolve();
    });
  });
}

/** Only a refused connection proves that nobody listens: silence or a full backlog may be a busy owner. */
function answers(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path);
    const settle = (isAlive: boolean): void => {
      socket.destroy();
      resolve(isAlive);
    };
    socket.setTimeout(SOCKET_PROBE_MS, () => settle(true));
    socket.once("connect", () => settle(true));
    socket.once("error", (error) => settle(!("code" in error && error.code === "ECONNREFUSED")));
  });
}

function inUse(path: string): TierkvError {
  return new TierkvError("ADDRESS_IN_USE", {
    address: path,
    fix: "one sidecar serves all engines of a host; stop the other one, or set another [sidecar] socket",
  });
}

function failed(path: string, reason: string, fix: string): TierkvError {
  return new TierkvError("LISTEN_FAILED", { address: path, reason, fix });
}
