// Owns the line that lets another machine into the vault of this one.
import { createHash, X509Certificate } from "node:crypto";
import { networkInterfaces } from "node:os";
import type { Address, VaultConfig } from "../config/config.ts";
import { TierkvError } from "../errors.ts";
import { readPrivate } from "../private-file.ts";
import type { Role } from "../roles.ts";
import { certificatePath, tokensPath } from "../vault/identity.ts";
import { parseTokens } from "../vault/tokens.ts";
import { encodeJoinCode } from "./join-code.ts";
import { isEverywhere } from "./targets.ts";
import { isClosed } from "./vault-access.ts";

/** `tierkv join CODE`. `address` null: the one it listens on, or one of this machine's. Throws USAGE or CREDENTIALS. */
export function joinLine(
  vault: VaultConfig,
  listen: Pick<Address, "host" | "port">,
  role: Role,
  address: string | null,
): string {
  if (!isClosed(vault)) {
    const reason = "this vault asks nobody for a token: write its address into [cluster] there";
    throw new TierkvError("USAGE", { reason });
  }
  if (vault.tlsCert !== null || vault.tlsClientCa !== null) {
    const reason =
      "this vault has certificates of your own CA: give its clients [cluster] tls_ca, and tls_cert or token";
    throw new TierkvError("USAGE", { reason });
  }
  const path = tokensPath(vault);
  const found = parseTokens(readPrivate(path, "[vault] tokens"), path).find(
    (entry) => entry.role === role,
  );
  if (found === undefined) {
    const fix = `write a line \`${role}:\` and 32 or more random characters`;
    throw new TierkvError("CREDENTIALS", { path, reason: `it has no ${role} token`, fix });
  }
  const { raw } = new X509Certificate(readPrivate(certificatePath(vault), "[vault] state_dir"));
  const code = encodeJoinCode({
    address: address ?? reachableAddress(listen),
    fingerprint: fingerprintOf(raw),
    token: found.token,
  });
  return `tierkv join ${code}`;
}

/** SHA-256 of a certificate (DER). */
export function fingerprintOf(raw: Buffer): Buffer {
  return createHash("sha256").update(raw).digest();
}

function reachableAddress({ host, port }: Pick<Address, "host" | "port">): string {
  const shown = isEverywhere(host) ? ownAddress() : host;
  return shown.includes(":") ? `[${shown}]:${port}` : `${shown}:${port}`;
}

/** The first address of this machine on a network; IPv4 before IPv6. */
function ownAddress(): string {
  const all = Object.values(networkInterfaces()).flatMap((list) => list ?? []);
  const others = all.filter(({ internal, address }) => !internal && !address.startsWith("fe80"));
  const [first] = [...others].sort((a, b) => a.family.localeCompare(b.family));
  return first?.address ?? "127.0.0.1";
}
