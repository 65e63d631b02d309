// Owns the steps of a join: verifies the vault's certificate, redeems the code, and writes the address into the configuration.
import { hostname } from "node:os";
import { classesOf, vaultClassName } from "../../base/block.ts";
import type { RecordClass } from "../../base/block.ts";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { namesIn, sourceOf } from "../../base/hosts.ts";
import { JOIN_TIMEOUT_MS } from "../../base/limits/access.ts";
import { askOnce } from "../../client/vault/ask.ts";
import type { Asked } from "../../client/vault/ask.ts";
import { certificateAt, fingerprintOf, pemOf } from "../../client/vault/certificate.ts";
import { helloRequest } from "../../client/vault/hello.ts";
import { isReached } from "../../cluster/credentials.ts";
import type { Config } from "../../config/config.ts";
import { diagnosed } from "../../diagnosis/reach.ts";
import { Book } from "../../discovery/book.ts";
import { VAULT_SERVER_NAME } from "../../wire/security.ts";
import { vaultService } from "../../wire/service.ts";
import type { Call } from "../shell/call.ts";
import { describeWritten, listOf, remarkOnMoved, writeVaults } from "../vaults/vault-lists.ts";
import type { Written } from "../vaults/vault-lists.ts";
import type { Invitation } from "./join-code.ts";

/** Returns the vault's certificate if it matches the code; nothing is sent before. Throws FINGERPRINT or VAULT_UNREACHED. */
export async function certificateOf({ address, fingerprint }: Invitation): Promise<string> {
  const raw = await certificateAt(address, JOIN_TIMEOUT_MS).catch(async (error: unknown) => {
    throw await diagnosed(error, { name: "the", address }, true);
  });
  const seen = fingerprintOf(raw);
  if (seen.equals(fingerprint)) return pemOf(raw);
  const short = (bytes: Buffer): string => bytes.toString("hex").slice(0, 16);
  throw new TierkvError("FINGERPRINT", { address, seen: short(seen), wanted: short(fingerprint) });
}

/** Credential that a vault gave this machine. */
export interface Credential {
  address: string;
  /** Name by which the vault knows this machine. */
  name: string;
  token: string;
}

/** Exchanges the invitation for this machine's own credential, which replaces those of earlier joins that the vault knows. */
export async function redeem(
  invitation: Invitation,
  caPem: string,
  formers: string[],
): Promise<Credential> {
  const { address, secret } = invitation;
  const asked = askedWith(address, caPem, secret);
  try {
    const request = { machine: hostname(), formers };
    const { name, token } = await askOnce(asked, vaultService.Redeem, request);
    return { address, name, token };
  } catch (error) {
    if (toTierkvError(error).code !== "VAULT_LOCKED") throw error;
    const reason = "the code was used, has expired, or is of another vault";
    throw new TierkvError("VAULT_LOCKED", { name: asked.name, address, reason }, { cause: error });
  }
}

/** Returns the vault's record classes, which proves that the token works. */
export async function askClasses(
  { address, token }: Credential,
  caPem: string,
): Promise<readonly RecordClass[]> {
  const asked = askedWith(address, caPem, token);
  const hello = await askOnce(asked, vaultService.Hello, helloRequest("kv"));
  return classesOf(vaultClassName(hello.recordClass));
}

/** Addresses of a pool's vaults, and of those that were taken out of it. */
export interface Pooled {
  vaults: readonly string[];
  left: readonly string[];
}

/** Returns the list of the vault's pool; null: it belongs to none. */
export async function askPooled(
  { address, token }: Credential,
  caPem: string,
): Promise<Pooled | null> {
  const request = { mark: 0, epoch: 0 };
  const asked = askedWith(address, caPem, token);
  const { key, vaults } = await askOnce(asked, vaultService.Pool, request);
  if (key.length === 0) return null;
  const book = new Book(key);
  book.take(vaults);
  const those = (isGone: boolean): string[] =>
    book.vaults.filter(({ gone }) => gone === isGone).map((vault) => vault.address);
  return { vaults: those(false), left: those(true) };
}

function askedWith(address: string, caPem: string, token: string): Asked {
  const security = {
    caPem: Buffer.from(caPem),
    serverName: VAULT_SERVER_NAME,
    certPem: null,
    keyPem: null,
    token: () => token,
  };
  return { name: "the", address, security, timeoutMs: JOIN_TIMEOUT_MS };
}

/** Returns a list's entry for a vault: its address, or that of its pool, by the vault of it that the list names already. */
export function entryOf(
  config: Config,
  name: RecordClass,
  address: string,
  pooled: Pooled | null,
): string {
  if (pooled === null) return address;
  const ofPool = (text: string): boolean =>
    sourceOf(text) === "pool" && [address, ...pooled.vaults].includes(namesIn(text));
  return listOf(config, name).find((text) => ofPool(text)) ?? `pool:${address}`;
}

/** Writes a vault or its pool into the vault lists, in place of the pool's single vaults; `line` reports the result. */
export function writeAddress(
  call: Call,
  config: Config,
  address: string,
  { classes, pooled }: { classes: readonly RecordClass[]; pooled: Pooled | null },
): Written & { line: string; moved: string[] } {
  const entries = classes.map((name) => {
    const entry = entryOf(config, name, address, pooled);
    return [name, withJoined(config, name, entry, pooled)] as const;
  });
  const lists = Object.fromEntries(entries);
  const written = writeVaults(call, config, lists);
  const moved = remarkOnMoved(config, lists);
  return { ...written, line: describeWritten(written, lists), moved };
}

/** Adds the address to the list; replaces a single entry that cannot be reached, because it was a guess of this address. */
function withJoined(
  config: Config,
  name: RecordClass,
  address: string,
  pooled: Pooled | null,
): string[] {
  const { vaults = [], left = [] } = pooled ?? {};
  const standsFor = new Set([...vaults, ...left, ...left.map((gone) => `pool:${gone}`)]);
  const texts = listOf(config, name).filter((text) => !standsFor.has(text));
  const kept = texts.length > 1 ? texts : texts.filter((text) => isReached(config, text));
  return kept.includes(address) ? kept : [...kept, address];
}
