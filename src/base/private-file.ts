// Owns files with secrets: created with mode 0600 in a directory only we may write, and read only if both still hold.
import {
  closeSync,
  constants,
  linkSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  unlinkSync,
  writeFileSync,
} from "node:fs";
import { dirname } from "node:path";
import { isThere, makeDirectory } from "./directory.ts";
import { fileReason, isTierkvError, TierkvError, toTierkvError } from "./errors.ts";
import { SECRET_FILE_BYTES_MAX } from "./limits/access.ts";
import { openOwn } from "./own-file.ts";
import { randomId } from "./time.ts";

/** Mode bits that let group or others in, and those that let them write. */
const FOREIGN_BITS = 0o077;
const FOREIGN_WRITE_BITS = 0o022;

export interface PrivateFileOptions {
  /** Another user who may own it. */
  also?: number | null;
  bytesMax?: number;
}

/** Returns a secret's text. Throws CREDENTIALS when it cannot be read, or others may read it. */
export function readPrivate(path: string, key: string, options: PrivateFileOptions = {}): string {
  return readChecked(path, key, true, options);
}

/** Returns the text of a file that others may read but not write. Throws CREDENTIALS. */
export function readUnforged(path: string, key: string, bytesMax: number): string {
  return readChecked(path, key, false, { bytesMax });
}

/** Returns a certificate's text; others may read it but not write. Throws CREDENTIALS, also where it is no certificate. */
export function readPublic(path: string, key: string): string {
  const text = readChecked(path, key, false, {});
  if (text.includes("-----BEGIN CERTIFICATE-----")) return text;
  throw refused(path, "it holds no certificate as PEM", `correct ${key}`);
}

function readChecked(
  path: string,
  key: string,
  isSecret: boolean,
  { also = null, bytesMax = SECRET_FILE_BYTES_MAX }: PrivateFileOptions,
): string {
  const refuse = (reason: string, fix: string | null): never => {
    throw refused(path, reason, fix ?? `correct ${key}`);
  };
  try {
    const { handle, stats } = openOwn(path, refuse, also);
    try {
      const { mode, size } = stats;
      const bits = isSecret ? FOREIGN_BITS : FOREIGN_WRITE_BITS;
      if ((mode & bits) !== 0) {
        const shown = (mode & 0o777).toString(8);
        const reason = `it has mode ${shown}, so others may ${isSecret ? "read" : "write"} it`;
        throw refused(path, reason, `run \`chmod ${isSecret ? "600" : "644"} ${path}\``);
      }
      if (size > bytesMax) {
        const reason = `${size} bytes, the limit is ${bytesMax}`;
        throw refused(path, reason, `correct ${key}`);
      }
      return readFileSync(handle, "utf8");
    } finally {
      closeSync(handle);
    }
  } catch (error) {
    if (isTierkvError(error)) throw error;
    throw refused(path, `it cannot be read: ${fileReason(error)}`, `correct ${key}`);
  }
}

/** Whether no such file exists. Throws CREDENTIALS when that cannot be determined. */
export function isAbsent(path: string, key: string): boolean {
  try {
    return statSync(path, { throwIfNoEntry: false }) === undefined;
  } catch (error) {
    throw refused(path, `it cannot be read: ${fileReason(error)}`, `correct ${key}`);
  }
}

/** Replaces a secret in one step. Throws CREDENTIALS. */
export function writePrivate(path: string, text: string, key: string): void {
  writeFresh(path, text, key, (fresh) => renameSync(fresh, path));
}

/** Writes a secret unless the file exists; then returns false. Throws CREDENTIALS. */
export function createPrivate(path: string, text: string, key: string): boolean {
  let isOurs = true;
  writeFresh(path, text, key, (fresh) => {
    try {
      linkSync(fresh, path);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
      isOurs = false;
    } finally {
      unlinkSync(fresh);
    }
  });
  return isOurs;
}

function writeFresh(path: string, text: string, key: string, place: (fresh: string) => void): void {
  const fresh = `${path}.${randomId(4)}`;
  try {
    prepareDirectory(dirname(path), key);
    writeWhole(fresh, text, place);
  } catch (error) {
    if (isTierkvError(error)) throw error;
    const reason = `it cannot be written: ${toTierkvError(error).message}`;
    throw refused(path, reason, `set ${key} to a place of this user's`);
  }
}

function writeWhole(fresh: string, text: string, place: (fresh: string) => void): void {
  try {
    writeFileSync(fresh, text, { mode: 0o600, flag: "wx" });
    place(fresh);
  } catch (error) {
    // On a full disk each try of a restarting service would leave one.
    rmSync(fresh, { force: true });
    throw error;
  }
}

/** Checks without side effects that a secret could be written there. Throws CREDENTIALS. */
export function checkRoom(directory: string, key: string): void {
  try {
    if (isThere(directory, constants.W_OK | constants.X_OK)) checkOwn(directory, key);
  } catch (error) {
    if (isTierkvError(error)) throw error;
    const reason = `it cannot be written: ${toTierkvError(error).message}`;
    throw refused(directory, reason, `set ${key} to a place of this user's`);
  }
}

function prepareDirectory(directory: string, key: string): void {
  makeDirectory(directory);
  checkOwn(directory, key);
}

function checkOwn(directory: string, key: string): void {
  const { mode, uid } = statSync(directory);
  if (uid !== process.geteuid?.()) {
    const fix = `set ${key} to a place of this user's`;
    throw refused(directory, `it belongs to user ${uid}`, fix);
  }
  if ((mode & FOREIGN_WRITE_BITS) === 0) return;
  const fix = `run \`chmod 700 ${directory}\`, or set ${key} to another place`;
  throw refused(
    directory,
    `it has mode ${(mode & 0o777).toString(8)}: others may write there`,
    fix,
  );
}

function refused(path: string, reason: string, fix: string): TierkvError {
  return new TierkvError("CREDENTIALS", { path, reason, fix });
}
