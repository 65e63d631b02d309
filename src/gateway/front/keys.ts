// Owns access to the gateway: a file of API key digests, the tenant of each key, and its limits.
import { createHash } from "node:crypto";
import type { IncomingHttpHeaders } from "node:http";
import { TierkvError } from "../../base/errors.ts";
import {
  GATEWAY_KEYS_MAX,
  GATEWAY_KEY_LIMIT_MAX,
  GATEWAY_KEY_WORD_CHARS_MAX,
} from "../../base/limits/gateway.ts";
import { readPrivate } from "../../base/private-file.ts";
import { Allowance } from "./allowance.ts";
import type { KeyLimits, ShownAllowance } from "./allowance.ts";
import { withField } from "./splice.ts";

export interface KeyHolder {
  readonly name: string;
  /** Tenant whose prompts share cached blocks; null: shared among all keys without a tenant. */
  readonly tenant: string | null;
  /** Shared by all keys of that name; null: no limits. */
  readonly allowance: Allowance | null;
}

/** One name whose keys have limits. */
export interface ShownKey extends ShownAllowance {
  name: string;
}

const SETTING = "[gateway] keys";
const BEARER = /^bearer +(\S+)$/i;
/** Headers that carry the gateway's own keys, which no engine gets. */
export const KEY_HEADERS: readonly string[] = ["authorization", "x-api-key"];
const WORD = /^[\w.-]+$/;
const DIGEST = /^[0-9a-f]{64}$/;
/** Stands in place of a name: limits of all names without their own. */
const EVERYBODY = "*";
const LIMIT = /^(requests|tokens|concurrent)=(\d+)$/;
const UNLIMITED: KeyLimits = { requests: null, tokens: null, concurrent: null };

/** Keys by SHA-256, so that the file reveals no key, and comparison time reveals nothing about a wrong one. */
export class Keys {
  readonly #holders: ReadonlyMap<string, KeyHolder>;

  constructor(text: string, path: string) {
    this.#holders = holdersOf(parse(text, path));
  }

  /** Throws CREDENTIALS for a file that others may read, or that has a malformed line. */
  static read(path: string): Keys {
    return new Keys(readPrivate(path, SETTING), path);
  }

  /** Finds the holder by `Authorization: Bearer KEY` or, as Anthropic's clients send it, `x-api-key: KEY`; null: no key, or an unknown one. */
  holderOf({ authorization, "x-api-key": plain }: IncomingHttpHeaders): KeyHolder | null {
    const [, bearer] = BEARER.exec(authorization ?? "") ?? [];
    const key = bearer ?? plain;
    if (typeof key !== "string") return null;
    return this.#holders.get(createHash("sha256").update(key).digest("hex")) ?? null;
  }

  /** Returns the names that have limits, each once. */
  status(): ShownKey[] {
    const limited = new Map<string, Allowance>();
    for (const { name, allowance } of this.#holders.values()) {
      if (allowance !== null) limited.set(name, allowance);
    }
    return [...limited].map(([name, allowance]) => ({ name, ...allowance.status() }));
  }
}

interface Line {
  name: string;
  digest: string;
  tenant: string | null;
  /** The limits as written, and as parsed. */
  said: string;
  limits: KeyLimits;
}

function holdersOf(lines: readonly Line[]): Map<string, KeyHolder> {
  const allowances = new Map<string, Allowance>();
  const common = lines.find(({ name }) => name === EVERYBODY)?.limits ?? UNLIMITED;
  const holders = new Map<string, KeyHolder>();
  for (const { name, digest, tenant, limits } of lines) {
    if (name === EVERYBODY) continue;
    const own = isLimited(limits) ? limits : common;
    const allowance = allowances.get(name) ?? (isLimited(own) ? new Allowance(own) : null);
    if (allowance !== null) allowances.set(name, allowance);
    holders.set(digest, { name, tenant, allowance });
  }
  return holders;
}

const isLimited = ({ requests, tokens, concurrent }: KeyLimits): boolean =>
  requests !== null || tokens !== null || concurrent !== null;

/** Splits a line where its limits begin. */
function split(words: readonly string[]): [plain: readonly string[], limits: readonly string[]] {
  const at = words.findIndex((word) => word.includes("="));
  return at < 0 ? [words, []] : [words.slice(0, at), words.slice(at)];
}

/** Parses lines of `NAME DIGEST [TENANT] [LIMITS]`, or of `*` and limits. */
function parse(text: string, path: string): Line[] {
  const lines = new Map<string, Line>();
  for (const [index, raw] of text.split("\n").entries()) {
    const line = raw.trim();
    if (line === "" || line.startsWith("#")) continue;
    const [plain, limiting] = split(line.split(/\s+/));
    const [name = "", digest = "", tenant = null] = plain;
    const said = limiting.join(" ");
    const reason =
      wrongWith(plain) ?? wrongLimits(limiting) ?? clash({ name, digest, said }, lines);
    if (reason !== null) throw refused(`${path}:${index + 1}`, reason);
    lines.set(digest, { name, digest, tenant, said, limits: limitsIn(limiting) });
  }
  const isNobody = [...lines.values()].every(({ name }) => name === EVERYBODY);
  if (isNobody) throw refused(path, "it holds no key, so nobody could come in");
  if (lines.size > GATEWAY_KEYS_MAX) throw refused(path, `more than ${GATEWAY_KEYS_MAX} keys`);
  return [...lines.values()];
}

function clash(
  { name, digest, said }: Omit<Line, "tenant" | "limits">,
  lines: ReadonlyMap<string, Line>,
): string | null {
  if (lines.has(digest)) return "this key stands there twice";
  const others = [...lines.values()].filter((line) => line.name === name && line.said !== said);
  return others.length === 0 ? null : `${name} has other limits above`;
}

function wrongWith(words: readonly string[]): string | null {
  const [name = "", digest = "", ...rest] = words;
  if (name === EVERYBODY && words.length === 1) return null;
  if (![name, ...rest].every(isWord) || rest.length > 1) {
    return "a name or tenant of other characters than letters, digits, `.`, `_` and `-`, or more";
  }
  return DIGEST.test(digest) ? null : "the second word is no SHA-256: 64 hexadecimal digits";
}

function wrongLimits(words: readonly string[]): string | null {
  const seen = new Set<string>();
  for (const word of words) {
    const [, what, count] = LIMIT.exec(word) ?? [];
    if (what === undefined || seen.has(what)) {
      return `${word} is none of requests=N, tokens=N (a minute) and concurrent=N, each once`;
    }
    seen.add(what);
    const isWithin = Number(count) >= 1 && Number(count) <= GATEWAY_KEY_LIMIT_MAX;
    if (!isWithin) return `${word} is not within 1 to ${GATEWAY_KEY_LIMIT_MAX}`;
  }
  return null;
}

function limitsIn(words: readonly string[]): KeyLimits {
  const of = (what: string): number | null => {
    const [word] = words.filter((one) => one.startsWith(`${what}=`));
    return word === undefined ? null : Number(word.slice(what.length + 1));
  };
  return { requests: of("requests"), tokens: of("tokens"), concurrent: of("concurrent") };
}

function refused(path: string, reason: string): TierkvError {
  const fix =
    "write `NAME SHA256-OF-THE-KEY`, a tenant behind it where keys have one, and `requests=N`, `tokens=N`, `concurrent=N` where they have limits";
  return new TierkvError("CREDENTIALS", { path, reason, fix });
}

function isWord(text: string): boolean {
  return WORD.test(text) && text.length <= GATEWAY_KEY_WORD_CHARS_MAX;
}

/** A request's body for an engine. */
export interface Body {
  bytes: Buffer;
  parsed: unknown;
}

/**
 * Sets `cache_salt` by the holder's tenant and the client's own salt, so that no client reaches another tenant's blocks. Without
 * tenant and salt the body stays untouched; otherwise all but that field does. null: no JSON object, so an engine might read
 * another tenant's salt there.
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
  const salt = saltOf(tenant, hasOwn ? own : null);
  return { bytes: withField(bytes, "cache_salt", salt), parsed: { ...parsed, cache_salt: salt } };
}

/**
 * Returns the tenant's name, or name and digest of the client's salt: at most 108 characters, because vLLM takes 128. A name
 * has no colon, so no tenant and salt together equal another tenant's.
 */
function saltOf(tenant: string | null, own: string | null): string | null {
  if (own === null) return tenant;
  return `${tenant ?? ""}:${createHash("sha256").update(own).digest("base64url")}`;
}
