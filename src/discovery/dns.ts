// Owns names that stand for a pool's vaults: `dns:host:port` for the addresses of a host, `dns:name` for its SRV records.
import { Resolver } from "node:dns/promises";
import { TierkvError, toTierkvError } from "../base/errors.ts";
import { ofOneFamily } from "../base/families.ts";
import { isNames } from "../base/hosts.ts";
import { DNS_TIMEOUT_MS, DNS_TRIES } from "../base/limits/pool.ts";
import type { Address } from "../config/config.ts";

/** Methods of a resolver that are used. */
export type Resolving = Pick<Resolver, "resolve4" | "resolve6" | "resolveSrv">;

const NOTHING: ReadonlySet<string> = new Set(["ENODATA", "ENOTFOUND"]);

export function systemResolver(): Resolving {
  return new Resolver({ timeout: DNS_TIMEOUT_MS, tries: DNS_TRIES });
}

/** Returns the addresses behind a configured one, sorted; one that is no name is returned itself. Throws NAMES_UNRESOLVED. */
export async function addressesOf(
  { host, port, text }: Address,
  resolver: Resolving,
): Promise<string[]> {
  if (!isNames(text)) return [text];
  try {
    const found = port === 0 ? await services(host, resolver) : await hosts(host, port, resolver);
    if (found.length > 0) return found.toSorted();
  } catch (error) {
    const reason = `the name server gives no answer: ${toTierkvError(error).message}`;
    const fix = "look at the name servers of this machine (/etc/resolv.conf)";
    throw new TierkvError("NAMES_UNRESOLVED", { address: text, reason, fix }, { cause: error });
  }
  const kind = port === 0 ? "SRV" : "A or AAAA";
  const fix = "ask for it with `dig`, and write the whole name";
  throw new TierkvError("NAMES_UNRESOLVED", {
    address: text,
    reason: `it has no ${kind} records`,
    fix,
  });
}

async function services(name: string, resolver: Resolving): Promise<string[]> {
  const records = await orNone(resolver.resolveSrv(name));
  return records.map(({ name: host, port }) => `${host.replace(/\.$/, "")}:${port}`);
}

async function hosts(name: string, port: number, resolver: Resolving): Promise<string[]> {
  const [v4, v6] = await Promise.all([
    orNone(resolver.resolve4(name)),
    orNone(resolver.resolve6(name)),
  ]);
  return ofOneFamily({ v4, v6: v6.map((host) => `[${host}]`) }).map((host) => `${host}:${port}`);
}

/** Returns an empty list where there are no records of one kind. */
async function orNone<Record>(asked: Promise<Record[]>): Promise<Record[]> {
  try {
    return await asked;
  } catch (error) {
    const code = error instanceof Error && "code" in error ? String(error.code) : "";
    if (NOTHING.has(code)) return [];
    throw error;
  }
}
