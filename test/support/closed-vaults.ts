// Owns closed vaults for tests: a CA, good and bad certificates, tokens of each role, and calls over plain HTTP/2.
import { writeFileSync } from "node:fs";
import { connect } from "node:http2";
import type { ClientHttp2Session } from "node:http2";
import { join } from "node:path";
import { newVaultCounters } from "../../src/base/metrics.ts";
import type { VaultCounter } from "../../src/base/metrics.ts";
import { makeCertificate } from "../../src/base/native.ts";
import type { CertifiedKey } from "../../src/base/native.ts";
import type { Gossip } from "../../src/discovery/gossip.ts";
import { openSecurity } from "../../src/vault/access/identity.ts";
import type { SecurityFiles } from "../../src/vault/access/identity.ts";
import { startVault } from "../../src/vault/server.ts";
import type { PausableVault, VaultOptions } from "../../src/vault/server.ts";
import { VAULT_SERVER_NAME } from "../../src/wire/security.ts";
import type { ChannelSecurity } from "../../src/wire/security.ts";
import { testDirectory } from "./sidecars.ts";
import { closeAfterTest, logger, MIB } from "./vaults.ts";

export const CA_NAME = "test CA";
const DAY_S = 86_400;

/** Makes a certificate valid from `fromDays` to `toDays` from now. */
export function certificate(
  usage: "ca" | "server" | "client",
  ca: CertifiedKey | null = null,
  about: { unit?: string; fromDays?: number; toDays?: number; hosts?: string[] } = {},
): CertifiedKey {
  const {
    unit = "",
    fromDays = -10,
    toDays = 10,
    hosts = [VAULT_SERVER_NAME, "127.0.0.1"],
  } = about;
  const nowS = Math.floor(Date.now() / 1000);
  const names = usage === "server" ? hosts : [];
  const commonName = usage === "ca" ? CA_NAME : usage;
  const issuer = ca === null ? null : { commonName: CA_NAME, keyPem: ca.keyPem };
  const [notBeforeS, notAfterS] = [nowS + fromDays * DAY_S, nowS + toDays * DAY_S];
  return makeCertificate({ usage, commonName, unit, hosts: names, notBeforeS, notAfterS }, issuer);
}

/** Writes a file of mode 0600 in its own directory. */
export function secretFile(text: string, name = "secret"): string {
  const path = join(testDirectory(), name);
  writeFileSync(path, text, { mode: 0o600 });
  return path;
}

export const TOKENS = {
  read: "r".repeat(40),
  write: "w".repeat(40),
  admin: "a".repeat(40),
} as const;

export interface ClosedVault extends PausableVault {
  ca: CertifiedKey;
  /** Certificate that clients trust. */
  caPem: string;
  auditLog: string;
  tokensFile: string;
  counter(name: VaultCounter): number;
}

/** Returns the trust and credentials of a client. */
export function shown({ caPem }: ClosedVault, token: string | null): ChannelSecurity {
  const [certPem, keyPem] = [null, null];
  return {
    caPem: Buffer.from(caPem),
    serverName: "127.0.0.1",
    certPem,
    keyPem,
    token: () => token,
  };
}

export async function openClosedVault(
  change: Partial<SecurityFiles> & { server?: CertifiedKey } = {},
  more: Partial<VaultOptions["config"]> = {},
  gossipOf: (certPem: Buffer | null) => Gossip | null = () => null,
): Promise<ClosedVault> {
  const ca = certificate("ca");
  const server = change.server ?? certificate("server", ca);
  const tokensFile = secretFile(
    Object.entries(TOKENS)
      .map(([role, token]) => `${role}:${token}\n`)
      .join(""),
  );
  const auditLog = join(testDirectory(), "audit.jsonl");
  const files: SecurityFiles = {
    stateDir: join(testDirectory(), "state"),
    tlsCert: secretFile(server.certPem),
    tlsKey: secretFile(server.keyPem),
    tlsClientCa: secretFile(ca.certPem),
    tokens: tokensFile,
    ...change,
  };
  const { security } = openSecurity(files, logger);
  const listen = { host: "127.0.0.1", port: 0, text: "127.0.0.1:0" };
  const vault = await startVault({
    config: { listen, maxBytes: 64 * MIB, auditLog, ...more },
    security,
    gossip: gossipOf(security?.certPem ?? null),
    recordClass: "kv",
    logger,
    counters: newVaultCounters(),
  });
  closeAfterTest(vault);
  const counter = (name: VaultCounter): number => vault.counts()[name] ?? 0;
  return { ...vault, ca, caPem: ca.certPem, auditLog, tokensFile, counter };
}

export interface Shown {
  token?: string;
  certificate?: CertifiedKey;
}

export function connectTo(vault: ClosedVault, { certificate: own }: Shown): ClientHttp2Session {
  const session = connect(`https://${vault.address}`, {
    ca: vault.caPem,
    servername: VAULT_SERVER_NAME,
    ...(own === undefined ? {} : { cert: own.certPem, key: own.keyPem }),
  });
  session.on("error", () => {});
  return closeAfterTest(session);
}

export interface RawAnswer {
  /** gRPC status; null: the connection ended without one. */
  status: number | null;
  message: string;
  /** Body bytes that left for the vault. */
  sent: number;
}

/** Body bytes of a call with an empty message. */
export const EMPTY_BYTES = 5;

/** Makes one call whose body goes on for `bodyBytes` (or a chunk more), whatever the vault answers. */
export async function rawCall(
  session: ClientHttp2Session,
  path: string,
  { token }: Shown,
  bodyBytes: number,
): Promise<RawAnswer> {
  const stream = session.request({
    ":method": "POST",
    ":path": path,
    "content-type": "application/grpc",
    te: "trailers",
    ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
  });
  const answer: RawAnswer = { status: null, message: "", sent: 0 };
  const take = (headers: Record<string, unknown>): void => {
    if (headers["grpc-status"] === undefined) return;
    answer.status = Number(headers["grpc-status"]);
    const { "grpc-message": words = "" } = headers as { "grpc-message"?: string };
    answer.message = decodeURI(words);
  };
  stream
    .on("response", take)
    .on("trailers", take)
    .on("error", () => {})
    .resume();
  const head = Buffer.alloc(EMPTY_BYTES);
  head.writeUInt32BE(Math.max(0, bodyBytes - head.length), 1);
  stream.write(head);
  answer.sent = head.length;
  const chunk = Buffer.alloc(16_384);
  const more = (): void => {
    if (answer.sent >= bodyBytes || stream.destroyed) {
      stream.end();
      return;
    }
    stream.write(chunk, (error) => {
      if (error !== null && error !== undefined) return;
      answer.sent += chunk.length;
      more();
    });
  };
  more();
  await new Promise<void>((resolve) => {
    if (stream.destroyed || session.destroyed) resolve();
    else stream.once("close", resolve);
    // A session that ends may leave a stream without an end of its own.
    session.once("close", resolve);
  });
  return answer;
}
