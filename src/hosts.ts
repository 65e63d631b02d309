// Owns what an address says: its host and port, and whether to listen on it lets other machines in.
import { isIPv4 } from "node:net";

const UNIX_PREFIX = "unix:";
/** Who keeps processors' caches together where memory is shared. */
export type Coherence = "hardware" | "clflush";

const SHARED_PREFIX = "shm:";

/** A machine to wake: the host of its vault's address, and its network card's address, twelve hexadecimal digits. */
export interface Sleeper {
  readonly host: string;
  readonly mac: string;
}

/** Where memory of this machine lies that an address names; null: it names something else. */
export function sharedPath(address: string): string | null {
  return address.startsWith(SHARED_PREFIX) ? address.slice(SHARED_PREFIX.length) : null;
}

/** The socket that an address names; null: it names something else. */
export function unixPath(address: string): string | null {
  return address.startsWith(UNIX_PREFIX) ? address.slice(UNIX_PREFIX.length) : null;
}

/** Of `host:port`; the brackets of an IPv6 address are no part of the host. */
export function splitAddress(address: string): { host: string; port: number } {
  const colon = address.lastIndexOf(":");
  const host = address.slice(0, colon).replace(/^\[(.*)\]$/, "$1");
  return { host, port: Number(address.slice(colon + 1)) };
}

/** Where `node:net` connects to. */
export function connectionTo(address: string): { path: string } | { host: string; port: number } {
  const path = unixPath(address);
  return path === null ? splitAddress(address) : { path };
}

const SOURCES = ["dns", "pool", "etcd"] as const;

/** Who is asked for the vaults that an address stands for; null: it is a vault's own. */
export function sourceOf(address: string): (typeof SOURCES)[number] | null {
  return SOURCES.find((source) => address.startsWith(`${source}:`)) ?? null;
}

/** True of an address that stands for vaults that come and go. */
export function isNames(address: string): boolean {
  return sourceOf(address) !== null;
}

/** What such an address says behind its prefix. */
export function namesIn(address: string): string {
  return address.slice(address.indexOf(":") + 1);
}

/** True when only this machine can connect: a Unix socket, shared memory or the loopback. */
export function isLocal(at: { readonly host: string; readonly text: string }): boolean {
  const { host, text } = at;
  if (unixPath(text) !== null || sharedPath(text) !== null) return true;
  return host === "localhost" || host === "::1" || (isIPv4(host) && host.startsWith("127."));
}
