// Owns which client a command has for a target: one over the network with its credentials, or memory of this machine that is there.
import type { RecordClass } from "../block.ts";
import { SharedVault } from "../client/shared-vault.ts";
import { VaultClient } from "../client/vault-client.ts";
import type { Vault } from "../client/vault.ts";
import type { Config } from "../config/config.ts";
import { TierkvError } from "../errors.ts";
import { sharedPath } from "../hosts.ts";
import { HELLO_TIMEOUT_MS } from "../limits/general.ts";
import { createLogger } from "../log.ts";
import type { Logger } from "../log.ts";
import { securityFor } from "./credentials.ts";
import type { VaultTarget } from "./targets.ts";

export interface VaultLink {
  client: Vault;
  isTls: boolean;
}

/** Rejects with what a sidecar would be told of credentials, or of memory that is no fit region. */
export async function linkTo(
  config: Config,
  target: VaultTarget,
  logger: Logger,
  lanes: number,
): Promise<VaultLink> {
  const { address, classes } = target;
  const [name] = classes;
  if (sharedPath(address) !== null) {
    const { coherence, host, group } = config.cluster;
    const size = { maxBytes: 0, mustFit: false };
    const options = { address, name, coherence, host, group, logger, ...size };
    return { client: await SharedVault.open(options), isTls: false };
  }
  return remoteLink(config, target, logger, lanes);
}

function remoteLink(
  config: Config,
  target: VaultTarget,
  logger: Logger,
  lanes: number,
): VaultLink & { client: VaultClient } {
  const { address, classes } = target;
  const [name] = classes;
  const security = securityFor(config, target, logger);
  const { addresses: locals } = config.sidecar;
  const client = new VaultClient({ address, name, logger, lanes, locals, security });
  return { client, isTls: security !== null };
}

export interface Greeted {
  clients: Record<RecordClass, Vault[]>;
  close(): void;
}

/** All of a machine, class by class, memory of its own among them. Throws what the first says that does not answer. */
export async function greeted(config: Config, targets: readonly VaultTarget[]): Promise<Greeted> {
  const logger = createLogger("vaults", { level: "silent" });
  const of = async (name: RecordClass): Promise<Vault[]> => {
    const all: Vault[] = [];
    for (const target of placesOf(targets, name).values())
      all.push((await linkTo(config, { ...target, classes: [name] }, logger, 1)).client);
    return all;
  };
  const clients = { kv: await of("kv"), ssm: await of("ssm") };
  return { clients, close: await helloAll([...clients.kv, ...clients.ssm]) };
}

/** Resolves to what closes them, once all have answered. Throws what the first says that does not. */
export async function helloAll(all: readonly Vault[]): Promise<() => void> {
  const close = (): void => {
    for (const client of all) client.close();
  };
  try {
    await Promise.all(all.map((client) => client.hello(HELLO_TIMEOUT_MS)));
  } catch (error) {
    close();
    throw error;
  }
  return close;
}

/** Of that class, by address. */
export function placesOf(
  targets: readonly VaultTarget[],
  name: RecordClass,
): Map<string, VaultTarget> {
  const of = targets.filter(({ classes }) => classes.includes(name));
  return new Map(of.map((target) => [target.address, target]));
}

/** On one lane, so that records arrive in their order. Throws USAGE for memory of this machine. */
export function clientOf(config: Config, target: VaultTarget, name: RecordClass): VaultClient {
  if (sharedPath(target.address) !== null) {
    const reason = `${target.address} is memory of this machine, and no member of a pool`;
    throw new TierkvError("USAGE", { reason });
  }
  const level = config.log.level === "debug" ? "debug" : "silent";
  const logger = createLogger("vaults", { level });
  return remoteLink(config, { ...target, classes: [name] }, logger, 1).client;
}
