// Owns the `tierkv join` line that lets another machine into this machine's vault.
import { join } from "node:path";
import { TierkvError } from "../../base/errors.ts";
import { ownInterfaces } from "../../base/interfaces.ts";
import { writePrivate } from "../../base/private-file.ts";
import { fingerprintOf } from "../../client/vault/certificate.ts";
import { isEverywhere } from "../../cluster/targets.ts";
import { isClosed } from "../../cluster/vault-access.ts";
import type { Address, VaultConfig } from "../../config/config.ts";
import { readCertificate } from "../../vault/access/identity.ts";
import type { Call } from "../shell/call.ts";
import { encodeJoinCode } from "./join-code.ts";

/** Throws USAGE for a vault without tokens, or with certificates of the user's own CA. */
export function checkJoinable(vault: VaultConfig): void {
  if (!isClosed(vault)) {
    const reason =
      "no vault with tokens is configured here: run this on the vault's machine, or name its configuration with --config";
    throw new TierkvError("USAGE", { reason });
  }
  if (vault.tlsCert !== null || vault.tlsClientCa !== null) {
    const reason =
      "this vault has certificates of your own CA: give its clients [cluster] tls_ca, and tls_cert or token";
    throw new TierkvError("USAGE", { reason });
  }
}

/** Returns the line for `secret`. `address` null: the listen address, or one of this machine's. Throws CREDENTIALS. */
export function joinLine(
  vault: VaultConfig,
  listen: Pick<Address, "host" | "port">,
  secret: string,
  address: string | null,
): string {
  const code = encodeJoinCode({
    address: address ?? reachableAddress(listen),
    fingerprint: fingerprintOf(readCertificate(vault).toString()),
    secret,
  });
  return `tierkv join ${code}`;
}

/** Prints the line of a vault's first start on a terminal, else a file's name, because piped output may end in a journal. */
export function announce(
  call: Call,
  vault: VaultConfig,
  listen: Pick<Address, "host" | "port">,
  secret: string,
): void {
  const line = joinLine(vault, listen, secret, null);
  if (call.io.isTerminal) {
    const about = "to let one engine's machine in, run this line there within a day:";
    call.print({ event: "invitation", run: line }, [about, line]);
    return;
  }
  const path = join(vault.stateDir, "invitation");
  writePrivate(path, `${line}\n`, "[vault] state_dir");
  call.print({ event: "invitation", path }, [
    `the \`tierkv join\` line for one other machine, good for a day, is in ${path}`,
  ]);
}

function reachableAddress({ host, port }: Pick<Address, "host" | "port">): string {
  const shown = isEverywhere(host) ? ownAddress() : host;
  return shown.includes(":") ? `[${shown}]:${port}` : `${shown}:${port}`;
}

/** Returns this machine's first network address, IPv4 before IPv6. */
function ownAddress(): string {
  const others = ownInterfaces().filter(
    ({ internal, address }) => !internal && !address.startsWith("fe80"),
  );
  const [first] = [...others].sort((a, b) => a.family.localeCompare(b.family));
  return first?.address ?? "127.0.0.1";
}
