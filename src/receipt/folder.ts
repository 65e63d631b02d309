// Owns the folder of restore receipts: the signing key, and a bounded number of the latest receipts.
import { readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { TierkvError } from "../base/errors.ts";
import { RECEIPT_BYTES_MAX, RECEIPTS_SCANNED_EVERY } from "../base/limits/receipts.ts";
import { createPrivate, isAbsent, writePrivate } from "../base/private-file.ts";
import type { SigningKey } from "../base/signing-key.ts";
import { readSecret } from "../base/signing-key.ts";
import { randomToken } from "../base/time.ts";
import { receiptKey } from "./receipt.ts";

const KEY_NAME = "signing.key";
const SETTING = "[receipts] dir";
const END = ".json";
const NAME = /^[\da-f]{32}$/;

export class ReceiptFolder {
  readonly #directory: string;
  readonly #most: number;
  /** Receipts written since files were last counted. */
  #written: number = RECEIPTS_SCANNED_EVERY;

  constructor(directory: string, most: number) {
    this.#directory = directory;
    this.#most = most;
  }

  /** Returns the signing key, and creates it if absent. Throws CREDENTIALS. */
  key(): SigningKey {
    const path = join(this.#directory, KEY_NAME);
    if (isAbsent(path, SETTING)) createPrivate(path, randomToken(32).toString("hex"), SETTING);
    return receiptKey(readSecret(path, SETTING, ""));
  }

  /** Returns the signing key; null: nothing was signed here yet. Throws CREDENTIALS. */
  ownKey(): SigningKey | null {
    return isAbsent(join(this.#directory, KEY_NAME), SETTING) ? null : this.key();
  }

  /** Writes a receipt, and removes the oldest beyond the limit. Throws CREDENTIALS, or a system error. */
  write(name: string, text: string): void {
    writePrivate(join(this.#directory, `${name}${END}`), text, SETTING);
    this.#written += 1;
    if (this.#written < RECEIPTS_SCANNED_EVERY) return;
    this.#written = 0;
    const files = readdirSync(this.#directory).filter((file) => file.endsWith(END));
    const aged = files
      .map((file) => join(this.#directory, file))
      .map((path) => ({ path, ms: statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0 }))
      .toSorted((a, b) => b.ms - a.ms);
    for (const { path } of aged.slice(this.#most)) rmSync(path, { force: true });
  }

  /** Reads a receipt by name or path. Throws RECEIPT_REFUSED where there is none of that name, USAGE for a path that is no file. */
  read(named: string): { text: string; where: string } {
    const isName = NAME.test(named);
    const path = isName ? join(this.#directory, `${named}${END}`) : named;
    const missing = (reason: string): TierkvError =>
      new TierkvError("RECEIPT_REFUSED", { where: path, reason });
    const misnamed = (reason: string): TierkvError =>
      new TierkvError("USAGE", { reason: `receipt ${path}: ${reason}` });
    const found = statSync(path, { throwIfNoEntry: false });
    if (found === undefined) {
      if (!isName) throw misnamed("there is no such file");
      throw missing(
        `there is none of that name: nothing was restored for its request, or it was one of the oldest, of which ${SETTING} holds keep = ${this.#most}`,
      );
    }
    if (!found.isFile()) throw misnamed("it is no file: give a receipt's name, or its file");
    const { size } = found;
    if (size > RECEIPT_BYTES_MAX) throw missing(`${size} bytes, at most ${RECEIPT_BYTES_MAX}`);
    return { text: readFileSync(path, "utf8"), where: path };
  }
}
