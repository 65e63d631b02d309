// Owns a vault's credentials: certificate, key and tokens, made at the first start where absent.
import { X509Certificate } from "node:crypto";
import { statSync } from "node:fs";
import { dirname, join } from "node:path";
import { TierkvError } from "../../base/errors.ts";
import { checkPair } from "../../base/key-pair.ts";
import {
  CERTIFICATE_DAYS,
  CERTIFICATE_EARLY_S,
  CERTIFICATE_WARN_DAYS,
  TOKEN_BYTES,
} from "../../base/limits/access.ts";
import type { Logger } from "../../base/log.ts";
import { makeCertificate } from "../../base/native.ts";
import type { CertificateIssuer, CertificateOptions, CertifiedKey } from "../../base/native.ts";
import {
  checkRoom,
  createPrivate,
  isAbsent,
  readPrivate,
  readPublic,
} from "../../base/private-file.ts";
import { randomToken, wallClockMs } from "../../base/time.ts";
import { VAULT_SERVER_NAME } from "../../wire/security.ts";
import { Members } from "./members.ts";
import { TokenFile } from "./tokens.ts";

const DAY_S = 86_400;
const STATE_KEY = "[vault] state_dir";

/** Credentials for the listening sockets and the gate. */
export interface VaultSecurity {
  readonly certPem: Buffer;
  readonly keyPem: Buffer;
  /** null: client certificates are not asked for. */
  readonly clientCaPem: Buffer | null;
  /** null: client certificates alone open it. */
  readonly tokens: TokenFile | null;
  /** Machines that joined; null: client certificates alone open it. */
  readonly members: Members | null;
}

/** Paths of the parts; null: made in `stateDir`, or not wanted. */
export interface SecurityFiles {
  readonly stateDir: string;
  readonly tlsCert: string | null;
  readonly tlsKey: string | null;
  readonly tlsClientCa: string | null;
  readonly tokens: string | null;
}

export interface OpenedSecurity {
  security: VaultSecurity;
  /** Whether it made the tokens and has invited nobody, so that no machine can have joined yet. */
  isNew: boolean;
}

/** Reads all parts and makes absent ones that belong to the vault. Throws CREDENTIALS. */
export function openSecurity(files: SecurityFiles, logger: Logger): OpenedSecurity {
  const { certPem, keyPem, path } = ownCertificate(files);
  checkPair(path, certPem, keyPem);
  checkValidity(path, certPem, logger);
  const { tlsClientCa, tokens } = files;
  const isByToken = tokens !== null || tlsClientCa === null;
  const isOwn = tokens === null && isByToken;
  // A sidecar of this machine may have made the tokens, so the first invitation decides.
  const isNew = isOwn && (makeTokens(tokensPath(files)) || isAbsent(membersPath(files), STATE_KEY));
  return {
    security: {
      certPem,
      keyPem,
      clientCaPem:
        tlsClientCa === null ? null : Buffer.from(readPublic(tlsClientCa, "[vault] tls_client_ca")),
      ...(isByToken ? openToTokens(files, logger) : { tokens: null, members: null }),
    },
    isNew,
  };
}

/** Checks the same parts without making any; root may check those of a service. Throws CREDENTIALS. */
export function checkSecurity(files: SecurityFiles, logger: Logger): void {
  const { tlsCert, tlsClientCa, tokens } = files;
  const also = serviceUser(files.stateDir);
  if (tlsCert === null && isAbsent(certificatePath(files), STATE_KEY)) {
    checkRoom(dirname(certificatePath(files)), STATE_KEY);
  } else {
    const { certPem, keyPem, path } = ownCertificate(files, also);
    checkPair(path, certPem, keyPem);
    checkValidity(path, certPem, logger);
  }
  if (tlsClientCa !== null) readPublic(tlsClientCa, "[vault] tls_client_ca");
  if (tokens === null && (tlsClientCa !== null || isAbsent(tokensPath(files), STATE_KEY))) return;
  openToTokens(files, logger, also);
}

/** Reads the certificate of this machine's vault, and makes none. Throws CREDENTIALS. */
export function readCertificate(files: SecurityFiles): Buffer {
  const { stateDir, tlsCert } = files;
  if (tlsCert !== null) return Buffer.from(readPublic(tlsCert, "[vault] tls_cert"));
  const path = certificatePath(files);
  if (isAbsent(path, STATE_KEY)) {
    const fix =
      "start the vault, run this as its user, or, as root for a service of the machine, with STATE_DIRECTORY=/var/lib/tierkv";
    throw new TierkvError("CREDENTIALS", { path, reason: "the file is missing", fix });
  }
  return pick(readPrivate(path, STATE_KEY, { also: serviceUser(stateDir) }), "CERTIFICATE");
}

/** Reads the certificate and key of this machine's vault, with which its user shows to be that user. Throws CREDENTIALS. */
export function readOwnPair(files: SecurityFiles): { certPem: Buffer; keyPem: Buffer } {
  const { stateDir, tlsKey } = files;
  const certPem = readCertificate(files);
  const also = serviceUser(stateDir);
  if (tlsKey !== null) {
    return { certPem, keyPem: Buffer.from(readPrivate(tlsKey, "[vault] tls_key", { also })) };
  }
  return {
    certPem,
    keyPem: pick(readPrivate(certificatePath(files), STATE_KEY, { also }), "PRIVATE KEY"),
  };
}

/** Returns the user of a service whose folder root asks about; null: this user's own folder. */
export function serviceUser(stateDir: string): number | null {
  const stats = statSync(stateDir, { throwIfNoEntry: false });
  return process.geteuid?.() === 0 ? (stats?.uid ?? null) : null;
}

function openToTokens(
  files: SecurityFiles,
  logger: Logger,
  also: number | null = null,
): { tokens: TokenFile; members: Members } {
  const tokens = new TokenFile(tokensPath(files), logger, also);
  return { tokens, members: new Members(membersPath(files), logger, also) };
}

const membersPath = ({ stateDir }: SecurityFiles): string => join(stateDir, "members.json");

/** Returns the path of the token file for these settings. */
export function tokensPath({ stateDir, tokens }: SecurityFiles): string {
  return tokens ?? join(stateDir, "tokens");
}

/** Key and certificate share one file, so that neither ever exists without the other. */
export function certificatePath({ stateDir }: Pick<SecurityFiles, "stateDir">): string {
  return join(stateDir, "vault.pem");
}

/** `also`: another user who may own the files. */
function ownCertificate(
  files: SecurityFiles,
  also: number | null = null,
): { certPem: Buffer; keyPem: Buffer; path: string } {
  const { tlsCert, tlsKey } = files;
  if (tlsCert !== null && tlsKey !== null) {
    return {
      certPem: Buffer.from(readPublic(tlsCert, "[vault] tls_cert")),
      keyPem: Buffer.from(readPrivate(tlsKey, "[vault] tls_key", { also })),
      path: tlsCert,
    };
  }
  const path = certificatePath(files);
  makeOwnCertificate(path);
  const text = readPrivate(path, STATE_KEY, { also });
  return { certPem: pick(text, "CERTIFICATE"), keyPem: pick(text, "PRIVATE KEY"), path };
}

function pick(text: string, label: string): Buffer {
  const [found = ""] =
    new RegExp(`-----BEGIN ${label}-----[^-]+-----END ${label}-----\n?`).exec(text) ?? [];
  return Buffer.from(found);
}

/** Keeps an existing certificate, because clients have pinned it. */
function makeOwnCertificate(path: string): void {
  if (!isAbsent(path, STATE_KEY)) return;
  const { certPem, keyPem } = certify({
    usage: "server",
    commonName: "tierKV vault",
    hosts: [VAULT_SERVER_NAME],
  });
  createPrivate(path, keyPem + certPem, STATE_KEY);
}

/** Makes a new key and its certificate, valid from now on. */
export function certify(
  about: Pick<CertificateOptions, "usage" | "commonName" | "hosts"> & { unit?: string },
  issuer: CertificateIssuer | null = null,
): CertifiedKey {
  const nowS = Math.floor(wallClockMs() / 1000);
  const notBeforeS = nowS - CERTIFICATE_EARLY_S;
  const notAfterS = nowS + CERTIFICATE_DAYS * DAY_S;
  return makeCertificate({ unit: "", ...about, notBeforeS, notAfterS }, issuer);
}

/** Returns false when the file exists already. */
function makeTokens(path: string): boolean {
  const line = (role: string): string =>
    `${role}:${randomToken(TOKEN_BYTES).toString("base64url")}`;
  const text = `# Tokens that open this vault, one a line: role:token. Read again when this file changes.
${line("read")}
${line("write")}
${line("admin")}
`;
  return isAbsent(path, STATE_KEY) && createPrivate(path, text, STATE_KEY);
}

function checkValidity(path: string, certPem: Buffer, logger: Logger): void {
  const { validTo } = new X509Certificate(certPem);
  const daysLeft = (Date.parse(validTo) - wallClockMs()) / 1000 / DAY_S;
  if (daysLeft <= 0) {
    const fix = "renew it; one that the vault made is made again when the file is gone";
    throw new TierkvError("CREDENTIALS", { path, reason: `it expired on ${validTo}`, fix });
  }
  if (daysLeft > CERTIFICATE_WARN_DAYS) return;
  logger.warn(
    { path, validTo, daysLeft: Math.floor(daysLeft) },
    "the vault's certificate expires soon",
  );
}
