// Owns the fetch of a vault's certificate without trusting it: the caller decides whether it is the right one.
import { createHash, X509Certificate } from "node:crypto";
import { connect } from "node:tls";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { splitAddress } from "../../base/hosts.ts";
import { ALPN, TLS_MIN_VERSION, VAULT_SERVER_NAME } from "../../wire/security.ts";

/** Returns the certificate in DER. Throws VAULT_DOWN. */
export async function certificateAt(address: string, timeoutMs: number): Promise<Buffer> {
  const socket = connect({
    ...splitAddress(address),
    servername: VAULT_SERVER_NAME,
    rejectUnauthorized: false,
    minVersion: TLS_MIN_VERSION,
    ALPNProtocols: [...ALPN],
  });
  const fail = (reason: string): TierkvError =>
    new TierkvError("VAULT_DOWN", { name: "the", address, reason });
  try {
    return await new Promise<Buffer>((resolve, reject) => {
      socket.setTimeout(timeoutMs, () => reject(fail(`silent for ${timeoutMs} ms`)));
      socket.once("error", (error) => reject(fail(toTierkvError(error).message)));
      socket.once("secureConnect", () => resolve(socket.getPeerCertificate().raw));
    });
  } finally {
    socket.destroy();
  }
}

/** SHA-256 of a certificate, in PEM or DER. */
export function fingerprintOf(certificate: string | Buffer): Buffer {
  return createHash("sha256").update(new X509Certificate(certificate).raw).digest();
}

export function pemOf(raw: Buffer): string {
  const lines = raw.toString("base64").match(/.{1,64}/g) ?? [];
  return ["-----BEGIN CERTIFICATE-----", ...lines, "-----END CERTIFICATE-----", ""].join("\n");
}
