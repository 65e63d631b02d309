// Owns a client's side of trust in a vault: TLS 1.3 for the vault's identity, a token per call for its own.
import { X509Certificate } from "node:crypto";
import { isIP } from "node:net";
import { checkServerIdentity, createSecureContext } from "node:tls";
import type { PeerCertificate } from "node:tls";
import { ChannelCredentials, credentials, Metadata } from "@grpc/grpc-js";
import type { ChannelOptions } from "@grpc/grpc-js";

/** Name in the certificate that a vault makes itself; clients pin it at any address. */
export const VAULT_SERVER_NAME = "tierkv-vault";
export const TLS_MIN_VERSION = "TLSv1.3";
export const ALPN: readonly string[] = ["h2"];

export interface ChannelSecurity {
  /** The vault's certificate, or its CA's. */
  readonly caPem: Buffer;
  /** Name that the certificate must carry: a host name, an IP address, or VAULT_SERVER_NAME. */
  readonly serverName: string;
  /** `caPem` is the only certificate accepted, whoever signed it. */
  readonly isPinned?: true;
  readonly certPem: Buffer | null;
  readonly keyPem: Buffer | null;
  /** Returns the current token; null: the client certificate identifies us. */
  token(): string | null;
}

/** null: plaintext. */
export function channelCredentials(security: ChannelSecurity | null): ChannelCredentials {
  if (security === null) return credentials.createInsecure();
  const { caPem, certPem, keyPem, serverName, isPinned = false } = security;
  const context = createSecureContext({
    ca: caPem,
    allowPartialTrustChain: isPinned,
    minVersion: TLS_MIN_VERSION,
    ...(certPem === null || keyPem === null ? {} : { cert: certPem, key: keyPem }),
  });
  return ChannelCredentials.createFromSecureContext(context, {
    checkServerIdentity: (_asked: string, certificate: PeerCertificate) =>
      isPinned ? checkPin(caPem, certificate) : checkServerIdentity(serverName, certificate),
  });
}

function checkPin(caPem: Buffer, { raw }: PeerCertificate): Error | undefined {
  return new X509Certificate(caPem).raw.equals(raw) ? undefined : new Error("another certificate");
}

/** Asks for VAULT_SERVER_NAME where the vault goes by an IP address, because TLS sends no IP addresses as server names. */
export function securityOptions(security: ChannelSecurity | null): ChannelOptions {
  if (security === null) return {};
  const { serverName } = security;
  const shown = isIP(serverName) === 0 ? serverName : VAULT_SERVER_NAME;
  return { "grpc.ssl_target_name_override": shown };
}

const AUTHORIZATION = "authorization";
const SCHEME = "Bearer ";

export function callMetadata(security: ChannelSecurity | null): Metadata {
  const metadata = new Metadata();
  const token = security?.token() ?? null;
  if (token !== null) metadata.set(AUTHORIZATION, SCHEME + token);
  return metadata;
}

/** Removes the token from a call's metadata and returns it; null: none. */
export function takeToken(metadata: Metadata): string | null {
  const [value, ...more] = metadata.get(AUTHORIZATION);
  metadata.remove(AUTHORIZATION);
  if (typeof value !== "string" || more.length > 0 || !value.startsWith(SCHEME)) return null;
  return value.slice(SCHEME.length);
}
