// Owns the socket file: a private directory, one live owner, mode 0600 before anybody can see it, and removal of what a dead owner left.
import { chmod, link, lstat, mkdir, rename, stat, unlink } from "node:fs/promises";
import { connect } from "node:net";
import type { Server } from "node:net";
import { dirname } from "node:path";
import { TierkvError, toTierkvError } from "../errors.ts";
import { SOCKET_PATH_BYTES_MAX, SOCKET_PROBE_MS } from "../limits.ts";
import { randomId } from "../time.ts";

/** Bits that let group or others in. */
const FOREIGN_BITS = 0o077;

/**
 * Makes `server` listen on `path` and returns how to take the file away again.
 *
 * The socket is bound under a private name, gets its mode, and only then appears under `path` by link(), which fails
 * when something is there: of two sidecars that start together exactly one wins, without a lock that could go stale.
 * What is there already is first moved aside by rename(), asked for a sign of life, and put back if it lives.
 */
export async function listenOn(server: Server, path: string): Promise<() => Promise<void>> {
  await prepareDirectory(path);
  const privatePath = `${path}.${randomId(3)}`;
  checkLength(path, privatePath);
  await listen(server, privatePath, path);
  try {
    await chmod(privatePath, 0o600);
    const own = await stat(privatePath);
    await publish(privatePath, path);
    await unlink(privatePath);
    return async () => {
      const now = await stat(path).catch(() => null);
      if (now !== null && now.ino === own.ino && now.dev === own.dev) await unlink(path);
    };
  } catch (error) {
    server.close();
    await unlink(privatePath).catch(() => {});
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

async function publish(privatePath: string, path: string): Promise<void> {
  const aside = `${privatePath}~`;
  if (await movedAside(path, aside)) {
    const isAlive = await answers(aside);
    if (isAlive) {
      // Its owner is well: give the name back, unless a third one has taken it meanwhile.
      await link(aside, path).catch(() => {});
      await unlink(aside);
      throw inUse(path);
    }
    await unlink(aside);
  }
  try {
    await link(privatePath, path);
  } catch (error) {
    throw isCode(error, "EEXIST") ? inUse(path) : error;
  }
}

/** False when there is nothing at `path`. Only a socket is ever moved. */
async function movedAside(path: string, aside: string): Promise<boolean> {
  try {
    const found = await lstat(path);
    if (!found.isSocket()) {
      throw failed(
        path,
        "something that is not a socket is there",
        "remove it, or set another [sidecar] socket",
      );
    }
    // A look without moving first: a live owner keeps its name without a gap.
    if (await answers(path)) throw inUse(path);
    await rename(path, aside);
    return true;
  } catch (error) {
    if (isCode(error, "ENOENT")) return false;
    throw error;
  }
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
    socket.once("error", (error) =>
      settle(!isCode(error, "ECONNREFUSED") && !isCode(error, "ENOENT")),
    );
  });
}

function isCode(error: unknown, code: string): boolean {
  return error instanceof Error && "code" in error && error.code === code;
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
