// Owns the socket file: private directory, one live owner, mode 0600 before it is visible, removal after a dead owner.
import { constants, lstatSync } from "node:fs";
import type { Stats } from "node:fs";
import { chmod, lstat, rename, stat, unlink } from "node:fs/promises";
import { connect } from "node:net";
import type { Server, Socket } from "node:net";
import { basename, dirname, join } from "node:path";
import { makeDirectory } from "./directory.ts";
import { TierkvError, toTierkvError } from "./errors.ts";
import { SOCKET_PATH_BYTES_MAX, SOCKET_PROBE_MS } from "./limits/general.ts";
import type { LockId } from "./native.ts";
import { lockFile, peerUid, unlockFile } from "./native.ts";
import { randomId } from "./time.ts";

/** Bits that let group or others in. */
const FOREIGN_BITS = 0o077;

const FOREIGN_WRITE_BITS = 0o022;

const ROOT_UID = 0;

/** Whether the peer process runs as our user or root, a second check behind the modes of file and directory. */
export function isOwnPeer(socket: Socket): boolean {
  const { _handle: handle } = socket as { _handle?: { fd?: number } | null };
  if (handle?.fd === undefined || handle.fd < 0) return false;
  const uid = peerUid(handle.fd);
  return uid === null || uid === ROOT_UID || uid === process.getuid?.();
}

/**
 * Returns why a socket may be another user's; null: it and its folder are ours or root's, or absent. Clients also call
 * `isOwnPeer` before they send the first byte.
 */
export function strangeSocket(path: string, key = "[sidecar] socket"): string | null {
  const folder = dirname(path);
  const around = lstatSync(folder, { throwIfNoEntry: false });
  const found = around && lstatSync(path, { throwIfNoEntry: false });
  if (around === undefined || found === undefined) return null;
  const own = process.geteuid?.() ?? ROOT_UID;
  const another = `set ${key} to a path in a folder of this user's with mode 700`;
  if (!around.isDirectory()) return `${folder} is a link; ${another}`;
  if (!isTrusted(around.uid)) {
    return `${folder} belongs to user ${around.uid}, this is user ${own}; ${another}`;
  }
  if ((around.mode & FOREIGN_WRITE_BITS) !== 0) {
    const mode = (around.mode & 0o7777).toString(8);
    return `${folder} has mode ${mode}, so others may put a socket there; run \`chmod 700 ${folder}\``;
  }
  if (!found.isSocket()) return `${path} is no socket; remove it, or ${another}`;
  if (isTrusted(found.uid)) return null;
  return `${path} belongs to user ${found.uid}, this is user ${own}; ${another}`;
}

function isTrusted(uid: number): boolean {
  return uid === ROOT_UID || uid === process.geteuid?.();
}

/** A server that can listen on a socket file. */
export interface SocketListener {
  listen(path: string): Promise<void>;
  close(): void;
}

/** Adapts a Node server. */
export function ofServer(server: Server): SocketListener {
  return {
    close: () => void server.close(),
    listen: (path) =>
      new Promise((resolve, reject) => {
        server.once("error", reject);
        server.listen(path, () => {
          server.off("error", reject);
          resolve();
        });
      }),
  };
}

/** Path to listen on, and texts for errors. */
export interface SocketPlace {
  path: string;
  /** The key that sets the path. */
  key: "[sidecar] socket" | "[vault] listen" | "[gateway] socket";
  /** Fix to suggest when another process serves it already. */
  whenTaken: string;
}

/**
 * Makes `listener` listen and returns a function that stops it and removes the file. Throws ADDRESS_IN_USE when the place
 * is already served, LISTEN_FAILED when it is not fit for a socket.
 *
 * A lock beside the socket admits one server at a time, because the system frees it when its holder dies. The socket
 * is bound under a private name, gets its mode, and only then moves to its place.
 */
export async function listenOn(
  listener: SocketListener,
  place: SocketPlace,
): Promise<() => Promise<void>> {
  const { path } = place;
  await prepareDirectory(place);
  const lock = takeLock(place);
  try {
    await checkPlace(place);
    const own = await bind(listener, place);
    let isOurs = true;
    return async () => {
      if (!isOurs) return;
      isOurs = false;
      const now = await stat(path).catch(() => null);
      if (now?.ino === own.ino && now.dev === own.dev) await unlink(path);
      listener.close();
      unlockFile(lock);
    };
  } catch (error) {
    listener.close();
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
  checkFolder(place, await lstat(directory));
}

/** Throws LISTEN_FAILED where the folder of a socket is there and unfit; makes nothing. */
export function checkSocketFolder(place: Pick<SocketPlace, "path" | "key">): void {
  const found = lstatSync(dirname(place.path), { throwIfNoEntry: false });
  if (found !== undefined) checkFolder(place, found);
}

function checkFolder(place: Pick<SocketPlace, "path" | "key">, found: Stats): void {
  const directory = dirname(place.path);
  // As in /tmp: the program makes a folder of its own there.
  const isOpen = (found.mode & constants.S_IWOTH) !== 0;
  const own = isOpen ? `, such as ${join(directory, "own", basename(place.path))}` : "";
  const another = `set another ${place.key}${own}`;
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

function takeLock(place: SocketPlace): LockId {
  let lock: LockId | null;
  try {
    lock = lockFile(`${place.path}.lock`);
  } catch (error) {
    throw failed(place, toTierkvError(error).message, `set another ${place.key}`);
  }
  if (lock === null) throw inUse(place);
  return lock;
}

/** Allows replacing only a socket that nobody listens on, because the lock guards only against other sidecars. */
async function checkPlace(place: SocketPlace): Promise<void> {
  const found = await lstat(place.path).catch(() => null);
  if (found === null) return;
  if (!found.isSocket()) {
    const fix = `remove it, or set another ${place.key}`;
    throw failed(place, "something that is not a socket is there", fix);
  }
  if (await answers(place.path)) throw inUse(place);
}

async function bind(
  listener: SocketListener,
  place: SocketPlace,
): Promise<{ ino: number; dev: number }> {
  const { path } = place;
  const privatePath = `${path}.${randomId(3)}`;
  checkLength(place, privatePath);
  try {
    await listener.listen(privatePath);
  } catch (error) {
    throw failed(place, toTierkvError(error).message, `set another ${place.key}`);
  }
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

/** Only a refused connection proves that nobody listens, because a busy owner may be silent or have a full backlog. */
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

function failed({ path }: Pick<SocketPlace, "path">, reason: string, fix: string): TierkvError {
  return new TierkvError("LISTEN_FAILED", { address: path, reason, fix });
}
