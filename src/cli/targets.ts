// Owns which vaults a configuration speaks of: those of the cluster, or the machine's own.
import type { RecordClass } from "../block.ts";
import type { Address, Config, Role } from "../config/config.ts";
import { placeOf } from "../config/load.ts";
import { TierkvError } from "../errors.ts";

export type VaultRole = Exclude<Role, "inference">;
export const VAULT_ROLES: readonly VaultRole[] = ["kv_cold", "ssm_cold"];

export interface VaultTarget {
  role: VaultRole;
  recordClass: RecordClass;
  /** Where to connect to. */
  address: string;
}

const CLASSES: Readonly<Record<VaultRole, RecordClass>> = { kv_cold: "kv", ssm_cold: "ssm" };

/** The class of records a vault of this machine holds. Throws CONFIG_CONFLICT where the machine is no vault. */
export function vaultClass(config: Config): RecordClass {
  const { role } = config.cluster;
  if (role !== "inference") return CLASSES[role];
  throw new TierkvError("CONFIG_CONFLICT", {
    where: placeOf(config, ["cluster", "role"]),
    key: "[cluster] role",
    value: '"inference"',
    reason: "a vault holds one class of records, and its role says which",
    fix: 'write role = "kv_cold" or role = "ssm_cold" on the machine of the vault',
  });
}

/** Every vault this machine knows: the configured addresses, and its own on a machine that is a vault. */
export function vaultTargets({ cluster, vault }: Config): VaultTarget[] {
  const own = (role: VaultRole): Address | null =>
    cluster.role === role ? reachable(vault.listen) : null;
  return VAULT_ROLES.flatMap((role) => {
    const address = (role === "kv_cold" ? cluster.kvCold : cluster.ssmCold) ?? own(role);
    return address === null ? [] : [{ role, recordClass: CLASSES[role], address: address.text }];
  });
}

/** Who listens on every interface is reached over the loopback. */
function reachable(listen: Address): Address {
  const loopback = { "0.0.0.0": "127.0.0.1", "::": "::1" }[listen.host];
  if (loopback === undefined) return listen;
  const host = loopback.includes(":") ? `[${loopback}]` : loopback;
  return { host: loopback, port: listen.port, text: `${host}:${listen.port}` };
}
