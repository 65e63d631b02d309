// Owns the question whether an address to listen on lets other machines in.
import { isIPv4 } from "node:net";

const UNIX_PREFIX = "unix:";

/** True when only this machine can connect: a Unix socket or the loopback. */
export function isLocal(at: { readonly host: string; readonly text: string }): boolean {
  const { host, text } = at;
  if (text.startsWith(UNIX_PREFIX)) return true;
  return host === "localhost" || host === "::1" || (isIPv4(host) && host.startsWith("127."));
}
