// Owns the tokens that open a vault: read from a file, reread when it changes, compared in constant time.
import { createHash, createHmac, timingSafeEqual } from "node:crypto";
import { statSync } from "node:fs";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import {
  TOKEN_CHARS_MAX,
  TOKEN_CHARS_MIN,
  TOKEN_FILE_POLL_MS,
  TOKENS_MAX,
} from "../../base/limits/access.ts";
import type { Logger } from "../../base/log.ts";
import { readPrivate } from "../../base/private-file.ts";
import { isRole, mayDo, ROLES } from "../../base/roles.ts";
import type { Role } from "../../base/roles.ts";
import { nowMs, randomToken } from "../../base/time.ts";

const KEY = "[vault] tokens";

/** Secrets of 256 random bits need no slow hash. */
export function digestOf(secret: string): string {
  return createHash("sha256").update(secret).digest("hex");
}

export interface Token {
  role: Role;
  token: string;
}

/** Parses `role:token` lines and skips empty ones and `#` comments. Throws CREDENTIALS naming the line, never the token. */
export function parseTokens(text: string, path: string): Token[] {
  const tokens: Token[] = [];
  const refuse = (line: number, reason: string): never => {
    const fix = "write `role:token`, the role read, write or admin";
    throw new TierkvError("CREDENTIALS", { path: `${path}:${line}`, reason, fix });
  };
  for (const [index, raw] of text.split("\n").entries()) {
    const line = raw.trim();
    if (line === "" || line.startsWith("#")) continue;
    const split = line.indexOf(":");
    const role = line.slice(0, Math.max(0, split));
    const token = line.slice(split + 1);
    if (!isRole(role)) return refuse(index + 1, "no role stands before the token");
    if (token.length < TOKEN_CHARS_MIN || token.length > TOKEN_CHARS_MAX) {
      const range = `${TOKEN_CHARS_MIN} to ${TOKEN_CHARS_MAX}`;
      return refuse(index + 1, `a token of ${token.length} characters: it must have ${range}`);
    }
    if (!/^[\x21-\x7e]+$/.test(token)) {
      return refuse(index + 1, "a token of other characters than ASCII without spaces");
    }
    tokens.push({ role, token });
  }
  if (tokens.length > TOKENS_MAX) {
    return refuse(1, `${tokens.length} tokens: the limit is ${TOKENS_MAX}`);
  }
  return tokens;
}

interface Entry {
  role: Role;
  digest: Buffer;
}

export class TokenFile {
  readonly path: string;
  readonly #logger: Logger;
  readonly #also: number | null;
  /** Random per process, so that the compared digests cannot be predicted. */
  readonly #salt = randomToken(32);
  #entries: Entry[];
  #seen: string;
  #lookedMs: number;

  /** `also`: another user who may own the file. Throws CREDENTIALS for a file that cannot be used, or holds no token. */
  constructor(path: string, logger: Logger, also: number | null = null) {
    this.#also = also;
    this.path = path;
    this.#logger = logger;
    this.#seen = versionOf(path);
    this.#lookedMs = nowMs();
    this.#entries = this.#read();
  }

  /** Returns the token's strongest role; null: unknown. Takes constant time, so that a near miss looks like any other. */
  roleOf(presented: string): Role | null {
    this.#renew();
    const digest = this.#digest(presented);
    let best: Role | null = null;
    for (const { role, digest: known } of this.#entries) {
      const isIt = timingSafeEqual(digest, known);
      if (isIt && (best === null || mayDo(role, best))) best = role;
    }
    return best;
  }

  #digest(token: string): Buffer {
    return createHmac("sha256", this.#salt).update(token).digest();
  }

  #read(): Entry[] {
    const tokens = parseTokens(readPrivate(this.path, KEY, { also: this.#also }), this.path);
    if (tokens.length === 0) {
      const reason = "it holds no token, so nobody could come in";
      const fix = `write a line \`${ROLES[1]}:\` and 32 or more random characters`;
      throw new TierkvError("CREDENTIALS", { path: this.path, reason, fix });
    }
    return tokens.map(({ role, token }) => ({ role, digest: this.#digest(token) }));
  }

  /** Rereads a changed file; where it is unusable, the previous tokens stay valid. */
  #renew(): void {
    if (nowMs() - this.#lookedMs < TOKEN_FILE_POLL_MS) return;
    this.#lookedMs = nowMs();
    const seen = versionOf(this.path);
    if (seen === this.#seen) return;
    this.#seen = seen;
    try {
      this.#entries = this.#read();
      this.#logger.info({ path: this.path, tokens: this.#entries.length }, "tokens read again");
    } catch (error) {
      const { message: reason } = toTierkvError(error);
      this.#logger.error(
        { reason },
        "the tokens could not be read again: the old tokens stay valid",
      );
    }
  }
}

/** Returns a text that changes with the file; empty while the file cannot be inspected. */
export function versionOf(path: string): string {
  try {
    const { ino, mtimeNs, size } = statSync(path, { bigint: true });
    return `${ino} ${mtimeNs} ${size}`;
  } catch {
    return "";
  }
}
