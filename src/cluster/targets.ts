// Owns the vaults of a configuration: the cluster's, the machine's own, or the one that its sidecar starts.
import type { RecordClass, VaultClass } from "../base/block.ts";
import { TierkvError } from "../base/errors.ts";
import { isNames, sharedPath, unixPath } from "../base/hosts.ts";
import type { Address, Config, Role } from "../config/config.ts";
import { placeOf } from "../config/load.ts";

export type VaultRole = Exclude<Role, "inference">;
export const VAULT_ROLES: readonly VaultRole[] = ["kv_cold", "ssm_cold", "cold"];

export interface VaultTarget {
  /** Display name: the role, or OWN_VAULT. */
  name: string;
  role: VaultRole;
  /** Record classes kept there; never empty. */
  classes: readonly [RecordClass, ...RecordClass[]];
  /** Address to connect to. */
  address: string;
  /** Whether it is the vault that this machine's configuration starts. */
  isOwn: boolean;
  /** Name in its certificate, if not the address's host. */
  serverName?: string;
  /** Entry in a pool's signed list: its certificate (PEM), and a joined vault whose token also opens it. */
  listed?: { certificate: string | null; via: string | null };
}

export const CLASSES: Readonly<Record<VaultRole, VaultTarget["classes"]>> = {
  kv_cold: ["kv"],
  ssm_cold: ["ssm"],
  cold: ["kv", "ssm"],
};

/** Name of the sidecar's own vault, which starts and ends with it. */
export const OWN_VAULT = "vault (local)";

/** Returns the record class of this machine's vault. Throws CONFIG_CONFLICT where the role is `inference`. */
export function vaultClass(config: Config): VaultClass {
  const { role } = config.cluster;
  if (role === "cold") return "both";
  if (role !== "inference") return CLASSES[role][0];
  throw new TierkvError("CONFIG_CONFLICT", {
    where: placeOf(config, ["cluster", "role"]),
    key: "[cluster] role",
    value: '"inference"',
    reason:
      "that is an engine's machine, as is one without a role; a vault's role says what it keeps",
    fix: 'on a vault\'s machine write role = "cold" (all records), "kv_cold" (attention KV) or "ssm_cold" (recurrent states); `tierkv init --machine vault` writes such a file',
  });
}

/**
 * Returns the configured addresses, and this machine's own vault for classes without any. Vaults behind names are left out,
 * because they come and go.
 */
export function vaultTargets(config: Config): VaultTarget[] {
  const listed = configuredOf(config).filter(({ address }) => !isNames(address.text));
  const byAddress = new Map<string, VaultTarget>();
  for (const { role, address } of listed) {
    // A vault in both lists is one vault, which is asked and shown once.
    const isInBoth = byAddress.has(address.text);
    byAddress.set(address.text, target(isInBoth ? "cold" : role, address));
  }
  const configured = [...byAddress.values()];
  const own = ownTarget(config).filter(({ classes }) =>
    classes.every((name) => configured.every((other) => !other.classes.includes(name))),
  );
  return [...configured, ...own];
}

/** Whether a class may have two vaults for its records, where `[cluster] redundancy` asks for two copies. */
export function hasTwoPlaces({ redundancy, kvCold, ssmCold }: Config["cluster"]): boolean {
  const isTwo = (all: readonly Address[]): boolean => {
    const vaults = all.filter(({ text }) => sharedPath(text) === null);
    return vaults.length > 1 || vaults.some(({ text }) => isNames(text));
  };
  return redundancy === "none" || isTwo(kvCold) || isTwo(ssmCold);
}

/** The consequence where `hasTwoPlaces` is false, and what to do. */
export const ONE_PLACE =
  '[cluster] redundancy = "copies:2" has one vault, so each record lies once: add another (`tierkv vaults add`), or write redundancy = "none"';

function configuredOf({ cluster }: Config): { role: "kv_cold" | "ssm_cold"; address: Address }[] {
  return [
    ...cluster.kvCold.map((address) => ({ role: "kv_cold" as const, address })),
    ...cluster.ssmCold.map((address) => ({ role: "ssm_cold" as const, address })),
  ];
}

/** Returns the address of the sidecar's own vault; null where vaults are configured or the machine is one. */
export function localVaultAddress({ cluster, sidecar }: Config): string | null {
  const isAlone = cluster.kvCold.length + cluster.ssmCold.length === 0;
  return cluster.role === "inference" && isAlone ? `unix:${sidecar.socket}${LOCAL_SUFFIX}` : null;
}

/** Whether it is the address of the vault that a sidecar starts. */
export function isLocalVault(address: string): boolean {
  return unixPath(address)?.endsWith(LOCAL_SUFFIX) === true;
}

const LOCAL_SUFFIX = ".vault";

function target(role: VaultRole, address: Address, isOwn = false): VaultTarget {
  return { name: role, role, classes: CLASSES[role], address: address.text, isOwn };
}

function ownTarget(config: Config): VaultTarget[] {
  const { role } = config.cluster;
  if (role !== "inference") return [target(role, reachable(config.vault.listen), true)];
  const address = localVaultAddress(config);
  if (address === null) return [];
  return [{ name: OWN_VAULT, role: "cold", classes: CLASSES.cold, address, isOwn: true }];
}

/** Loopback host of each wildcard host. */
const LOOPBACKS: Readonly<Record<string, string>> = { "0.0.0.0": "127.0.0.1", "::": "::1" };

export function isEverywhere(host: string): boolean {
  return Object.hasOwn(LOOPBACKS, host);
}

/** Returns the address to connect to from here: the loopback for a wildcard. */
export function reachable(listen: Address): Address {
  const loopback = LOOPBACKS[listen.host];
  if (loopback === undefined) return listen;
  const host = loopback.includes(":") ? `[${loopback}]` : loopback;
  return { host: loopback, port: listen.port, text: `${host}:${listen.port}` };
}
