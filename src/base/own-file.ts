// Owns the opening of a file that only this user or root can have written, checked by descriptor, never blocking on a pipe.
import { closeSync, constants, fstatSync, lstatSync, openSync } from "node:fs";
import type { Stats } from "node:fs";

const ROOT_UID = 0;
/** Codes of a refused link, which differ by system. */
const LINK_CODES: ReadonlySet<unknown> = new Set(["ELOOP", "EMLINK", "EFTYPE"]);

export interface OwnFile {
  handle: number;
  stats: Stats;
}

/** Reports why a file is refused; must throw. `fix` null: name another file. */
type Refuse = (reason: string, fix: string | null) => never;

/** `also`: another user who may own it. The caller closes the handle. Throws the system's error, or what `refuse` throws for a foreign file. */
export function openOwn(path: string, refuse: Refuse, also: number | null = null): OwnFile {
  const handle = openUnlinked(path, refuse);
  try {
    const stats = fstatSync(handle);
    if (!stats.isFile()) refuse("it is not a file", null);
    if (!isTrusted(stats.uid) && stats.uid !== also) {
      refuse(`it belongs to user ${stats.uid}, this is user ${ownUid()}`, fixOwner(path));
    }
    return { handle, stats };
  } catch (error) {
    closeSync(handle);
    throw error;
  }
}

/** Follows a link only of ours or root's, because nobody else can redirect that. */
function openUnlinked(path: string, refuse: Refuse): number {
  const flags = constants.O_RDONLY | constants.O_NONBLOCK;
  try {
    return openSync(path, flags | constants.O_NOFOLLOW);
  } catch (error) {
    if (!(error instanceof Error && "code" in error && LINK_CODES.has(error.code))) throw error;
    const { uid } = lstatSync(path);
    if (!isTrusted(uid)) refuse(`it is a link of user ${uid}`, fixOwner(path));
    return openSync(path, flags);
  }
}

function isTrusted(uid: number): boolean {
  return uid === ROOT_UID || uid === ownUid();
}

function ownUid(): number {
  return process.geteuid?.() ?? ROOT_UID;
}

function fixOwner(path: string): string {
  return `remove it, or run \`chown -h ${ownUid()} ${path}\` when it is yours`;
}
