// Owns the parsing of addresses: host, port, source, and whether listening there admits other machines.
import { isIPv4 } from "node:net";

const UNIX_PREFIX = "unix:";
/** Keeper of coherence between processors' caches where memory is shared. */
export type Coherence = "hardware" | "clflush";

const SHARED_PREFIX = "shm:";

/** A machine to wake: its vault's host, and its network card's address as twelve hexadecimal digits. */
export interface Sleeper {
  readonly host: string;
  readonly mac: string;
}

/** Returns the path of the shared memory that an address names; null: another kind of address. */
export function sharedPath(address: string): string | null {
  return address.startsWith(SHARED_PREFIX) ? address.slice(SHARED_PREFIX.length) : null;
}

/** Kinds of stores that others run, by scheme. */
const STORES = { "valkey://": "valkey", "valkeys://": "valkey", "s3://": "s3" } as const;

/** Returns the kind of the store that others run at an address; null: another kind of address. */
export function storeKind(address: string): "valkey" | "s3" | null {
  for (const [scheme, kind] of Object.entries(STORES)) if (address.startsWith(scheme)) return kind;
  return null;
}

/** True for a Valkey that is reached with TLS. */
export function isSecureStore(address: string): boolean {
  return address.startsWith("valkeys://");
}

/** Returns the `host:port` of each server that an address of Valkey names. */
export function valkeyHosts(address: string): string[] {
  const [hosts = ""] = address.slice(address.indexOf("://") + "://".length).split("/");
  return hosts.split(",");
}

/** True where a vault of ours listens at the address, or names of some are behind it. */
export function isVaultAddress(address: string): boolean {
  return sharedPath(address) === null && storeKind(address) === null;
}

/** The socket that an address names; null: it names something else. */
export function unixPath(address: string): string | null {
  return address.startsWith(UNIX_PREFIX) ? address.slice(UNIX_PREFIX.length) : null;
}

/** Splits `host:port`; the brackets of an IPv6 address are no part of the host. */
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

/** Returns the source that lists the vaults of an address; null: the address is a vault's own. */
export function sourceOf(address: string): (typeof SOURCES)[number] | null {
  return SOURCES.find((source) => address.startsWith(`${source}:`)) ?? null;
}

/** Whether an address stands for a changing list of vaults. */
export function isNames(address: string): boolean {
  return sourceOf(address) !== null;
}

/** Returns the part of such an address behind its prefix. */
export function namesIn(address: string): string {
  return address.slice(address.indexOf(":") + 1);
}

/** True when only this machine can connect: a Unix socket, shared memory or the loopback. */
export function isLocal(at: { readonly host: string; readonly text: string }): boolean {
  const { host, text } = at;
  if (unixPath(text) !== null || sharedPath(text) !== null) return true;
  return host === "localhost" || host === "::1" || (isIPv4(host) && host.startsWith("127."));
}
