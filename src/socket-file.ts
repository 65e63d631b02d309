// Owns the socket file: a private directory, one live owner, mode 0600 before anybody can see it, and removal of what a dead owner left.
import { chmod, lstat, rename, stat, unlink } from "node:fs/promises";
import { connect } from "node:net";
import type { Server, Socket } from "node:net";
import { dirname } from "node:path";
import { makeDirectory } from "./directory.ts";
import { TierkvError, toTierkvError } from "./errors.ts";
import { SOCKET_PATH_BYTES_MAX, SOCKET_PROBE_MS } from "./limits.ts";
import { lockFile, peerUid, unlockFile } from "./native.ts";
import { randomId } from "./time.ts";

/** Bits that let group or others in. */
const FOREIGN_BITS = 0o077;

const ROOT_UID = 0;

/** Whether the process at the other end is of our own user, or root: a second lock behind the mode of file and directory. */
export function isOwnPeer(socket: Socket): boolean {
  const { _handle: handle } = socket as { _handle?: { fd?: number } | null };
  if (handle?.fd === undefined || handle.fd < 0) return false;
  const uid = peerUid(handle.fd);
  return uid === null || uid === ROOT_UID || uid === process.getuid?.();
}

/** Where to listen, and what to tell people when that cannot be. */
export interface SocketPlace {
  path: string;
  /** The key that sets the path. */
  key: "[sidecar] socket" | "[vault] listen";
  /** What to do when somebody serves it already. */
  whenTaken: string;
}

/**
 * Makes `server` listen and returns how to stop that and take the file away again. Throws ADDRESS_IN_USE when somebody
 * serves the place already, LISTEN_FAILED when it is not fit for a socket.
 *
 * A lock beside the socket, which the system frees when its holder dies, lets one server at a time through. The socket
 * is bound under a private name, gets its mode, and only then takes its place.
 */
export async function listenOn(server: Server, place: SocketPlace): Promise<() => Promise<void>> {
  const { path } = place;
  await prepareDirectory(place);
  const lock = takeLock(place);
  try {
    await checkPlace(place);
    const own = await bind(server, place);
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

async function prepareDirectory(place: SocketPlace): Promise<void> {
  const directory = dirname(place.path);
  const another = `set another ${place.key}`;
  try {
    makeDirectory(directory);
  } catch (error) {
    throw failed(place, `its directory cannot be made: ${toTierkvError(error).message}`, another);
  }
  const found = await lstat(directory);
  const fix = `run \`chmod 700 ${directory}\` as its owner, or ${another}`;
  if (!found.isDirectory()) throw failed(place, `${directory} is not a directory`, another);
  if (found.uid !== process.getuid?.()) {
    throw failed(place, `${directory} belongs to user ${found.uid}`, another);
  }
  if ((found.mode & FOREIGN_BITS) !== 0) {
    const mode = (found.mode & 0o777).toString(8);
    throw failed(place, `${directory} has mode ${mode} and must be 700`, fix);
  }
}

function takeLock(place: SocketPlace): number {
  let lock: number | null;
  try {
    lock = lockFile(`${place.path}.lock`);
  } catch (error) {
    throw failed(place, toTierkvError(error).message, `set another ${place.key}`);
  }
  if (lock === null) throw inUse(place);
  return lock;
}

/** What is there may be replaced only if it is a socket that nobody listens on: the lock guards against sidecars only. */
async function checkPlace(place: SocketPlace): Promise<void> {
  const found = await lstat(place.path).catch(() => null);
  if (found === null) return;
  if (!found.isSocket()) {
    const fix = `remove it, or set another ${place.key}`;
    throw failed(place, "something that is not a socket is there", fix);
  }
  if (await answers(place.path)) throw inUse(place);
}

async function bind(server: Server, place: SocketPlace): Promise<{ ino: number; dev: number }> {
  const { path } = place;
  const privatePath = `${path}.${randomId(3)}`;
  checkLength(place, privatePath);
  await listen(server, privatePath, place);
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

function checkLength(place: SocketPlace, privatePath: string): void {
  const bytes = Buffer.byteLength(privatePath);
  if (bytes <= SOCKET_PATH_BYTES_MAX) return;
  const most = SOCKET_PATH_BYTES_MAX - (bytes - Buffer.byteLength(place.path));
  throw failed(place, `its path is longer than ${most} bytes`, `set a shorter ${place.key}`);
}

function listen(server: Server, privatePath: string, place: SocketPlace): Promise<void> {
  return new Promise((resolve, reject) => {
    const onError = (error: Error): void => {
      reject(failed(place, toTierkvError(error).message, `set another ${place.key}`));
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

function inUse({ path, whenTaken }: SocketPlace): TierkvError {
  return new TierkvError("ADDRESS_IN_USE", { address: path, fix: whenTaken });
}

function failed({ path }: SocketPlace, reason: string, fix: string): TierkvError {
  return new TierkvError("LISTEN_FAILED", { address: path, reason, fix });
}
