// Owns the credentials and trust for each vault: from a join, from the configuration, or from this machine's own vault.
import { X509Certificate } from "node:crypto";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { TierkvError, toTierkvError } from "../base/errors.ts";
import { isLocal, isNames, namesIn, sourceOf, splitAddress, unixPath } from "../base/hosts.ts";
import { readKeyPair } from "../base/key-pair.ts";
import { TOKEN_FILE_POLL_MS } from "../base/limits/access.ts";
import type { Logger } from "../base/log.ts";
import {
  checkRoom,
  isAbsent,
  readPrivate,
  readPublic,
  writePrivate,
} from "../base/private-file.ts";
import { mayDo } from "../base/roles.ts";
import { strangeSocket } from "../base/socket-file.ts";
import { nowMs, wallClockMs } from "../base/time.ts";
import type { VaultClientOptions } from "../client/vault/connection.ts";
import type { Address, Config } from "../config/config.ts";
import {
  openSecurity,
  readCertificate,
  readOwnPair,
  serviceUser,
  tokensPath,
} from "../vault/access/identity.ts";
import { digestOf, parseTokens, versionOf } from "../vault/access/tokens.ts";
import { VAULT_SERVER_NAME } from "../wire/security.ts";
import type { ChannelSecurity } from "../wire/security.ts";
import type { VaultTarget } from "./targets.ts";
import { isClosed } from "./vault-access.ts";

const CREDENTIALS_KEY = "[cluster] credentials";
const JOINED_SHOWN_MAX = 5;
/** Earlier joins that a new one may replace. */
const JOINED_MAX = 256;

/** Paths of the certificate and the token of one joined vault. */
interface JoinedFiles {
  folder: string;
  ca: string;
  token: string;
}

/** Returns where a join keeps its files; the address is `host:port`. */
export function joinedFiles({ cluster }: Config, address: string): JoinedFiles {
  const folder = join(cluster.credentials, address.replaceAll(/[^\w.-]/g, "_"));
  return { folder, ca: join(folder, "vault.pem"), token: join(folder, "token") };
}

/** Whether this machine has joined the vault at that address. */
export function isJoined(config: Config, address: string): boolean {
  return !isAbsent(joinedFiles(config, address).folder, CREDENTIALS_KEY);
}

/** Whether records may be sent there: it was joined, is on this machine, or the configuration sets its trust. */
export function isReached(config: Config, address: string): boolean {
  const { tlsCa, insecureLan } = config.cluster;
  if (tlsCa !== null || insecureLan) return true;
  const seed = sourceOf(address) === "pool" ? namesIn(address) : address;
  return isJoined(config, seed) || isLocal({ host: splitAddress(seed).host, text: address });
}

/** Throws CREDENTIALS where a join could keep nothing; checked first, because each join uses up the code. */
export function checkKeeping(config: Config, address: string): void {
  checkRoom(joinedFiles(config, address).folder, CREDENTIALS_KEY);
}

/** Returns the digests of the tokens of earlier joins, which tell a stranger nothing; a damaged token is left out. */
export function formerDigests({ cluster }: Config): string[] {
  return foldersIn(cluster.credentials, JOINED_MAX).flatMap((folder) => {
    try {
      return [digestOf(readToken(join(cluster.credentials, folder, "token"), CREDENTIALS_KEY))];
    } catch {
      return [];
    }
  });
}

/** Replaces the tokens of earlier joins at these addresses, because one token opens all vaults of a pool. Throws CREDENTIALS. */
export function shareToken(config: Config, addresses: readonly string[], token: string): void {
  for (const address of addresses) {
    if (!isJoined(config, address)) continue;
    writePrivate(joinedFiles(config, address).token, `${token}\n`, CREDENTIALS_KEY);
  }
}

/** Writes a join's certificate and token, and returns their folder. Throws CREDENTIALS. */
export function keepJoined(config: Config, address: string, caPem: string, token: string): string {
  const files = joinedFiles(config, address);
  writePrivate(files.token, `${token}\n`, CREDENTIALS_KEY);
  writePrivate(files.ca, caPem, CREDENTIALS_KEY);
  return files.folder;
}

/** The part of a target that decides how a vault is trusted. */
export type Reached = Pick<VaultTarget, "address" | "isOwn" | "serverName" | "listed">;

/** Like `securityFor`, for a process that goes on without this vault: the error is in `refusal`, and nothing is sent. */
export function accessTo(
  config: Config,
  target: Reached,
  logger: Logger,
): Pick<VaultClientOptions, "security" | "refusal"> {
  try {
    return { security: securityFor(config, target, logger, true) };
  } catch (error) {
    const refusal = toTierkvError(error);
    const { address } = target;
    logger.error({ vault: address, err: refusal }, "vault refused: nothing is sent to it");
    return { refusal };
  }
}

/**
 * Returns null for plaintext, because the vault is on this machine or `insecure_lan` allows it. Throws CREDENTIALS for an
 * unreadable certificate or token, INSECURE_VAULT without any. `isMaking`: makes this machine's own, for a sidecar that
 * starts before the vault.
 */
export function securityFor(
  config: Config,
  { address, isOwn, serverName, listed }: Reached,
  logger: Logger,
  isMaking = false,
): ChannelSecurity | null {
  const path = unixPath(address);
  if (path !== null) {
    const reason = strangeSocket(path, "[vault] listen");
    if (reason === null) return null;
    throw new TierkvError("CREDENTIALS", { path, reason, fix: "nothing is sent to it" });
  }
  const files = joinedFiles(config, address);
  if (isJoined(config, address)) return joined(files, address);
  const { tlsCa } = config.cluster;
  if (tlsCa !== null) return configured(config, tlsCa, serverName ?? splitAddress(address).host);
  const throughPool = listed === undefined ? null : joinedThrough(config, listed);
  if (throughPool !== null) return throughPool;
  if (isOwn) return ofOwn(config, address, logger, isMaking);
  if (isLocal({ host: splitAddress(address).host, text: address })) return null;
  if (!config.cluster.insecureLan) throw insecure(config, address);
  logger.warn(
    { vault: address },
    "[cluster] insecure_lan: data for this vault travels unencrypted",
  );
  return null;
}

function joined({ folder, ca, token }: JoinedFiles, address: string): ChannelSecurity {
  for (const path of [ca, token]) {
    if (!isAbsent(path, CREDENTIALS_KEY)) continue;
    const reason = `it is gone, and ${address} was joined`;
    const fix = `run the \`tierkv join\` line of its machine again, or remove ${folder}`;
    throw new TierkvError("CREDENTIALS", { path, reason, fix });
  }
  return {
    caPem: Buffer.from(readPrivate(ca, CREDENTIALS_KEY)),
    serverName: VAULT_SERVER_NAME,
    certPem: null,
    keyPem: null,
    token: tokenFile(token, CREDENTIALS_KEY),
  };
}

/** A join to one vault of a pool opens all of them, because the pool's list carries their certificates. */
function joinedThrough(
  config: Config,
  { certificate, via }: NonNullable<VaultTarget["listed"]>,
): ChannelSecurity | null {
  if (certificate === null || via === null) return null;
  return { ...joined(joinedFiles(config, via), via), caPem: Buffer.from(certificate) };
}

/** The error names vaults joined under other addresses, because a different address is the most frequent cause. */
function insecure({ cluster }: Config, address: string): TierkvError {
  const { key, value } = entryOf(cluster, address);
  const known = foldersIn(cluster.credentials, JOINED_SHOWN_MAX);
  const others = known.length === 0 ? "" : ` (joined here: ${known.join(", ")})`;
  return new TierkvError("INSECURE_VAULT", {
    key: `[cluster] ${key}`,
    value: JSON.stringify(value),
    reason: `this machine has not joined it under that name${others}, and without TLS everybody on the network path could read the data`,
    fix: "run the `tierkv join` line that `tierkv invite` prints on its machine, or write [cluster] insecure_lan = true on a network you trust",
  });
}

/** Returns the entry of the vault lists that leads to an address: itself, a name for it, or the first name for others. */
function entryOf({ kvCold, ssmCold }: Config["cluster"], address: string): Entry {
  const of = (key: string, all: readonly Address[]): Entry[] =>
    all.map(({ text }) => ({ key, value: text }));
  const all = [...of("kv_cold", kvCold), ...of("ssm_cold", ssmCold)];
  const named = all.find(({ value }) => value === address || namesIn(value) === address);
  return named ?? all.find(({ value }) => isNames(value)) ?? { key: "kv_cold", value: address };
}

interface Entry {
  key: string;
  value: string;
}

function foldersIn(folder: string, most: number): string[] {
  try {
    return readdirSync(folder).toSorted().slice(0, most);
  } catch {
    return [];
  }
}

function configured({ cluster }: Config, tlsCa: string, serverName: string): ChannelSecurity {
  const { tlsCert, tlsKey, token } = cluster;
  const isCertified = tlsCert !== null && tlsKey !== null;
  const pair = isCertified ? readKeyPair(tlsCert, tlsKey, "[cluster] tls") : null;
  if (pair !== null && tlsCert !== null) checkValidity(tlsCert, pair.cert);
  return {
    caPem: Buffer.from(readPublic(tlsCa, "[cluster] tls_ca")),
    serverName,
    certPem: pair && Buffer.from(pair.cert),
    keyPem: pair && Buffer.from(pair.key),
    token: token === null ? (): null => null : tokenFile(token, "[cluster] token"),
  };
}

/** Reads the credentials of all joined vaults and the configured ones, without connecting. Throws CREDENTIALS. */
export function checkCredentials(config: Config): void {
  const { kvCold, ssmCold, tlsCa } = config.cluster;
  for (const { text } of [...kvCold, ...ssmCold]) {
    const seed = sourceOf(text) === "pool" ? namesIn(text) : text;
    if (isJoined(config, seed)) joined(joinedFiles(config, seed), seed);
  }
  if (tlsCa !== null) configured(config, tlsCa, "");
}

function ofOwn(
  config: Config,
  address: string,
  logger: Logger,
  isMaking: boolean,
): ChannelSecurity | null {
  if (!isClosed(config.vault)) return null;
  if (isMaking) openSecurity(config.vault, logger);
  return ownVault(config, address);
}

/**
 * Commands on the vault's own machine use its best token, because its user can read the tokens anyway; where client certificates
 * alone open the vault, its own certificate, whose key that user has.
 */
export function ownVault({ vault }: Config, address: string): ChannelSecurity {
  const caPem = readCertificate(vault);
  const isOurs = vault.tlsCert === null;
  const isByToken = vault.tokens !== null || vault.tlsClientCa === null;
  const best = isByToken ? bestToken(vault) : null;
  const pair = isByToken ? null : readOwnPair(vault);
  return {
    caPem,
    serverName: isOurs ? VAULT_SERVER_NAME : splitAddress(address).host,
    // The vault's own certificate is pinned, because its CA's may be absent here.
    ...(isOurs ? {} : { isPinned: true as const }),
    certPem: pair?.certPem ?? null,
    keyPem: pair?.keyPem ?? null,
    token: () => best,
  };
}

function bestToken(vault: Config["vault"]): string | null {
  const path = tokensPath(vault);
  const text = readPrivate(path, "[vault] tokens", { also: serviceUser(vault.stateDir) });
  const tokens = parseTokens(text, path);
  return tokens.reduce((best, next) => (mayDo(best.role, next.role) ? best : next)).token;
}

function checkValidity(path: string, certPem: string): void {
  const { validTo } = new X509Certificate(certPem);
  if (Date.parse(validTo) > wallClockMs()) return;
  const fix = "make a new one with the CA's key (`tierkv certs init`)";
  throw new TierkvError("CREDENTIALS", { path, reason: `it expired on ${validTo}`, fix });
}

/** Returns a reader of the file's token that follows changes. Throws CREDENTIALS at once for an unfit file. */
function tokenFile(path: string, key: string): () => string {
  let seen = versionOf(path);
  let token = readToken(path, key);
  let lookedMs = nowMs();
  return () => {
    if (nowMs() - lookedMs < TOKEN_FILE_POLL_MS) return token;
    lookedMs = nowMs();
    const now = versionOf(path);
    if (now === seen) return token;
    seen = now;
    try {
      token = readToken(path, key);
    } catch {
      // Keep the previous token: it may still be valid, and the vault refuses it if not.
    }
    return token;
  };
}

function readToken(path: string, key: string): string {
  const lines = readPrivate(path, key)
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "" && !line.startsWith("#"));
  const token = lines[0]?.replace(/^(?:read|write|admin):/, "") ?? "";
  if (lines.length === 1 && /^[\x21-\x7e]+$/.test(token)) return token;
  const reason = `${lines.length} lines: it must hold one token, of ASCII without spaces`;
  throw new TierkvError("CREDENTIALS", { path, reason, fix: "write the token alone on a line" });
}
