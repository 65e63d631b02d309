// Owns who may use the gateway: a file of digests of API keys, and the tenant that a key belongs to.
import { createHash } from "node:crypto";
import type { IncomingHttpHeaders } from "node:http";
import { TierkvError } from "../../errors.ts";
import { GATEWAY_KEYS_MAX, GATEWAY_KEY_WORD_CHARS_MAX } from "../../limits-gateway.ts";
import { readPrivate } from "../../private-file.ts";

export interface KeyHolder {
  readonly name: string;
  /** Whose prompts share cached blocks; null: those of all keys without a tenant. */
  readonly tenant: string | null;
}

const SETTING = "[gateway] keys";
const BEARER = /^bearer +(\S+)$/i;
const WORD = /^[\w.-]+$/;
const DIGEST = /^[0-9a-f]{64}$/;

/** Keys by their SHA-256: nobody reads a key from the file, and no comparison tells how much of a wrong one was right. */
export class Keys {
  readonly #holders: ReadonlyMap<string, KeyHolder>;

  constructor(text: string, path: string) {
    this.#holders = parse(text, path);
  }

  /** Throws CREDENTIALS for a file that others may read, or that has a line of another form. */
  static read(path: string): Keys {
    return new Keys(readPrivate(path, SETTING), path);
  }

  /** By the `Authorization` header; null: none whom we know. */
  holderOf({ authorization }: IncomingHttpHeaders): KeyHolder | null {
    const [, key] = BEARER.exec(authorization ?? "") ?? [];
    if (key === undefined) return null;
    return this.#holders.get(createHash("sha256").update(key).digest("hex")) ?? null;
  }
}

/** Lines of `NAME DIGEST` or `NAME DIGEST TENANT`. */
function parse(text: string, path: string): Map<string, KeyHolder> {
  const holders = new Map<string, KeyHolder>();
  for (const [index, raw] of text.split("\n").entries()) {
    const line = raw.trim();
    if (line === "" || line.startsWith("#")) continue;
    const words = line.split(/\s+/);
    const [name = "", digest = "", tenant = null] = words;
    const reason = wrongWith(words) ?? (holders.has(digest) ? "this key stands there twice" : null);
    if (reason !== null) throw refused(`${path}:${index + 1}`, reason);
    holders.set(digest, { name, tenant });
  }
  if (holders.size > GATEWAY_KEYS_MAX) throw refused(path, `more than ${GATEWAY_KEYS_MAX} keys`);
  return holders;
}

function wrongWith([name = "", digest = "", ...rest]: readonly string[]): string | null {
  if (![name, ...rest].every(isWord) || rest.length > 1) {
    return "a name or tenant of other characters than letters, digits, `.`, `_` and `-`, or more";
  }
  return DIGEST.test(digest) ? null : "the second word is no SHA-256: 64 hexadecimal digits";
}

function refused(path: string, reason: string): TierkvError {
  const fix = "write `NAME SHA256-OF-THE-KEY`, and a tenant behind it where keys have one";
  return new TierkvError("CREDENTIALS", { path, reason, fix });
}

function isWord(text: string): boolean {
  return WORD.test(text) && text.length <= GATEWAY_KEY_WORD_CHARS_MAX;
}

/** A body for an engine. */
export interface Body {
  bytes: Buffer;
  parsed: unknown;
}

/**
 * The same request with its holder's tenant before the client's own `cache_salt`, so that no client reaches another tenant's
 * blocks; without a tenant that stays empty. Untouched where there is neither. null: what an engine would read there is not
 * known, and it might be another's salt.
 */
export function withTenant(
  { bytes, parsed }: Body,
  { tenant }: KeyHolder,
  contentType: string | undefined,
): Body | null {
  if (bytes.length === 0) return { bytes, parsed };
  if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) {
    const isForm = contentType?.startsWith("multipart/form-data") === true;
    return isForm && tenant === null ? { bytes, parsed } : null;
  }
  if (tenant === null && !("cache_salt" in parsed)) return { bytes, parsed };
  const { cache_salt: own } = parsed as Record<string, unknown>;
  const hasOwn = typeof own === "string" && own !== "";
  const salted = { ...parsed, cache_salt: saltOf(tenant, hasOwn ? own : null) };
  return { bytes: Buffer.from(JSON.stringify(salted)), parsed: salted };
}

/** A tenant's name has no colon, so that none can be made of another one's and a salt. */
function saltOf(tenant: string | null, own: string | null): string | undefined {
  if (own !== null) return `${tenant ?? ""}:${own}`;
  return tenant ?? undefined;
}
