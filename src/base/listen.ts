// Owns how an HTTP server listens: its real address, and the error if it cannot.
import type { AddressInfo, Server } from "node:net";
import { TierkvError, toTierkvError } from "./errors.ts";

/** Resolves to `host:port` with the real port, IPv6 in brackets. `key` sets the address. Throws ADDRESS_IN_USE or LISTEN_FAILED. */
export async function listenAt(
  server: Server,
  { host, port }: { readonly host: string; readonly port: number },
  key: string,
): Promise<string> {
  const shown = (real: number): string => `${host.includes(":") ? `[${host}]` : host}:${real}`;
  await new Promise<void>((resolve, reject) => {
    const onError = (error: NodeJS.ErrnoException): void =>
      reject(listenError(error, shown(port), key));
    server.once("error", onError);
    server.listen({ host, port }, () => {
      server.off("error", onError);
      resolve();
    });
  });
  return shown((server.address() as AddressInfo).port);
}

function listenError(error: NodeJS.ErrnoException, address: string, key: string): TierkvError {
  if (error.code === "EADDRINUSE") {
    const fix = `stop that process or set another ${key}`;
    return new TierkvError("ADDRESS_IN_USE", { address, fix }, { cause: error });
  }
  const fix = `set ${key} to an address of this machine`;
  const reason = toTierkvError(error).message;
  return new TierkvError("LISTEN_FAILED", { address, reason, fix }, { cause: error });
}
