// Owns how a client of a vault proves whom it talks to, and who it is: TLS 1.3 and, with each call, a token.
import { X509Certificate } from "node:crypto";
import { isIP } from "node:net";
import { checkServerIdentity, createSecureContext } from "node:tls";
import type { PeerCertificate } from "node:tls";
import { ChannelCredentials, credentials, Metadata } from "@grpc/grpc-js";
import type { ChannelOptions } from "@grpc/grpc-js";

/** The name in the certificate that a vault makes itself: its clients pin it, wherever it is. */
export const VAULT_SERVER_NAME = "tierkv-vault";
export const TLS_MIN_VERSION = "TLSv1.3";
export const ALPN: readonly string[] = ["h2"];

export interface ChannelSecurity {
  /** The vault's own certificate, or that of its CA. */
  readonly caPem: Buffer;
  /** Whom its certificate must name: a host name, an IP address, or VAULT_SERVER_NAME. */
  readonly serverName: string;
  /** `caPem` is the one certificate that the vault may show, whoever signed it. */
  readonly isPinned?: true;
  readonly certPem: Buffer | null;
  readonly keyPem: Buffer | null;
  /** As it stands now; null: the certificate says who we are. */
  token(): string | null;
}

/** null: in the clear. */
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

/** TLS names no IP addresses to a server; which vault it is says its certificate. */
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

/** Takes the token out of a call's metadata; null: none came. */
export function takeToken(metadata: Metadata): string | null {
  const [value, ...more] = metadata.get(AUTHORIZATION);
  metadata.remove(AUTHORIZATION);
  if (typeof value !== "string" || more.length > 0 || !value.startsWith(SCHEME)) return null;
  return value.slice(SCHEME.length);
}
