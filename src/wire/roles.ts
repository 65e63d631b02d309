// Owns the role that every call of a vault needs; a call without a row is denied.
import type { Role } from "../base/roles.ts";
import type { HealthService, VaultService } from "./service.ts";
import { healthService, vaultService } from "./service.ts";

/** The one call that takes an invitation instead of a credential. */
export const REDEEM_PATH: string = vaultService.Redeem.path;
/** The one call that takes the pool's token. */
export const GOSSIP_PATH: string = vaultService.Gossip.path;

/** Calls that the pool's token opens, because other vaults gossip and move records. */
export const POOL_PATHS: ReadonlySet<string> = new Set(
  (["Gossip", "Hello", "Lookup", "List", "Name"] as const).map((name) => vaultService[name].path),
);

const VAULT: Readonly<Record<Exclude<keyof VaultService, "Redeem" | "Gossip">, Role>> = {
  Hello: "read",
  Lookup: "read",
  // Readers may report, because the vault checks a record itself before it drops it.
  Report: "read",
  Stats: "read",
  // Readers watch, because they hold copies that flushes must reach.
  Watch: "read",
  Name: "write",
  Keep: "write",
  Sessions: "read",
  // Only in namespaces that no engine can have.
  Measure: "write",
  Flush: "admin",
  Invite: "admin",
  Peers: "admin",
  Revoke: "admin",
  List: "admin",
  Drain: "admin",
  Weigh: "admin",
  // Readers may know the vaults of the pool.
  Pool: "read",
  Admit: "admin",
};

const HEALTH: Readonly<Record<keyof HealthService, Role>> = {
  Check: "read",
  Watch: "read",
};

const NEEDED: ReadonlyMap<string, Role> = new Map([
  ...Object.entries(VAULT).map(([name, role]) => row(vaultService, name, role)),
  ...Object.entries(HEALTH).map(([name, role]) => row(healthService, name, role)),
]);

function row(service: object, name: string, role: Role): [string, Role] {
  const { path } = (service as Record<string, { path: string }>)[name] ?? { path: name };
  return [path, role];
}

/** Returns the role that the call of this path (`/package.Service/Call`) needs; null: nobody may call it. */
export function roleNeeded(path: string): Role | null {
  return NEEDED.get(path) ?? null;
}
