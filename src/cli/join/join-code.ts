// Owns the join code: a vault's address, its certificate's fingerprint, and the invitation's secret, in one word with a checksum.
import { createHash } from "node:crypto";
import { TierkvError } from "../../base/errors.ts";
import { splitAddress } from "../../base/hosts.ts";
import { JOIN_CODE_CHARS_MAX } from "../../base/limits/access.ts";

export interface Invitation {
  /** `host:port`. */
  address: string;
  /** SHA-256 of the certificate. */
  fingerprint: Buffer;
  /** Secret that the vault exchanges for a credential. */
  secret: string;
}

const PREFIX = "tkv1.";
/** Prefix of the whole printed line, which is accepted, too. */
const COMMAND = /^tierkv\s+join\s+/;
const FINGERPRINT_BYTES = 32;
const CHECK_BYTES = 4;
const FIX = "copy the whole line that `tierkv invite` prints on the vault's machine";

/** Base64url after the prefix: address length (1 byte), address, fingerprint (32), secret, first 4 bytes of their SHA-256. */
export function encodeJoinCode({ address, fingerprint, secret }: Invitation): string {
  const place = Buffer.from(address);
  const body = Buffer.concat([
    Buffer.from([place.length]),
    place,
    fingerprint,
    Buffer.from(secret),
  ]);
  return PREFIX + Buffer.concat([body, checkOf(body)]).toString("base64url");
}

/** Throws JOIN_CODE with the defect; the error never contains the code. */
export function decodeJoinCode(code: string): Invitation {
  const text = code.trim().replace(COMMAND, "");
  const refuse = (reason: string): never => {
    throw new TierkvError("JOIN_CODE", { reason, fix: FIX });
  };
  if (text.length > JOIN_CODE_CHARS_MAX) return refuse(`${text.length} characters are too many`);
  if (!text.startsWith(PREFIX)) {
    return /^tkv\d+\./.test(text)
      ? refuse("it is of another release; install the same on both machines")
      : refuse(`it does not begin with ${PREFIX}`);
  }
  const coded = text.slice(PREFIX.length);
  if (!/^[\w-]*$/.test(coded)) return refuse("it has characters that no code has");
  const all = Buffer.from(coded, "base64url");
  const body = all.subarray(0, Math.max(0, all.length - CHECK_BYTES));
  if (body.length === 0 || !checkOf(body).equals(all.subarray(-CHECK_BYTES))) {
    return refuse("its checksum does not fit, so that a part is missing or changed");
  }
  const placeEnd = 1 + (body[0] ?? 0);
  const secret = body.subarray(placeEnd + FINGERPRINT_BYTES).toString();
  const address = body.subarray(1, placeEnd).toString();
  if (!/^[\x21-\x7e]+:\d+$/.test(address) || !/^[\x21-\x7e]+$/.test(secret)) {
    return refuse("it names no address or no secret");
  }
  const { port } = splitAddress(address);
  if (port < 1 || port > 65_535)
    return refuse(`its address ${address} has no port from 1 to 65535`);
  const fingerprint = Buffer.from(body.subarray(placeEnd, placeEnd + FINGERPRINT_BYTES));
  return { address, fingerprint, secret };
}

function checkOf(body: Buffer): Buffer {
  return createHash("sha256").update(body).digest().subarray(0, CHECK_BYTES);
}
