// Owns the choice of a target's client: over the network with credentials, or in shared memory of this machine.
import type { RecordClass } from "../base/block.ts";
import { TierkvError } from "../base/errors.ts";
import { isSecureStore, isVaultAddress, sharedPath, storeKind } from "../base/hosts.ts";
import { HELLO_TIMEOUT_MS } from "../base/limits/general.ts";
import { createLogger, silent } from "../base/log.ts";
import type { Logger } from "../base/log.ts";
import { ColdStore } from "../client/cold/cold-store.ts";
import { storeSettings } from "../client/cold/settings.ts";
import { SharedVault } from "../client/region/shared-vault.ts";
import type { Vault } from "../client/vault.ts";
import { askOnce } from "../client/vault/ask.ts";
import { VaultClient } from "../client/vault/vault-client.ts";
import type { Waker } from "../client/vault/wake.ts";
import type { Config } from "../config/config.ts";
import type { ChannelSecurity } from "../wire/security.ts";
import { accessTo, securityFor } from "./credentials.ts";
import type { Reached } from "./credentials.ts";
import type { VaultTarget } from "./targets.ts";

export interface VaultLink<V extends Vault = Vault> {
  client: V;
  isTls: boolean;
}

/** Sends a client's first words; throws why it does not answer. */
export type Hello = (link: VaultLink) => Promise<unknown>;

/** Rejects with the errors of credentials, or of memory that is no fit region. */
export async function linkTo(
  config: Config,
  target: VaultTarget,
  logger: Logger,
  lanes: number,
): Promise<VaultLink> {
  const { address, classes } = target;
  const [name] = classes;
  if (sharedPath(address) !== null) {
    const size = { maxBytes: 0, mustFit: false };
    return { client: await sharedAt(config, address, name, logger, size), isTls: false };
  }
  if (storeKind(address) !== null) {
    return { client: storeAt(config, address, name, logger), isTls: isSecureStore(address) };
  }
  return remoteLink(config, target, logger, lanes);
}

/** Opens a store that others run. Throws BAD_ARGUMENT, STORE_FAILED or CREDENTIALS for an address or credentials that cannot be used. */
export function storeAt(
  config: Config,
  address: string,
  name: RecordClass,
  logger: Logger,
): ColdStore {
  return new ColdStore({ address, name, settings: storeSettings(config, name), logger });
}

function remoteLink(
  config: Config,
  target: VaultTarget,
  logger: Logger,
  lanes: number,
): VaultLink<VaultClient> {
  const { address, classes } = target;
  const [name] = classes;
  const security = securityFor(config, target, logger);
  const { addresses: locals } = config.sidecar;
  const client = new VaultClient({ address, name, logger, lanes, locals, security });
  return { client, isTls: security !== null };
}

/** `maxBytes`: size of a newly made region. */
export function sharedAt(
  config: Config,
  address: string,
  name: RecordClass,
  logger: Logger,
  size: { maxBytes: number; mustFit: boolean },
): Promise<SharedVault> {
  const { coherence, host, group } = config.cluster;
  return SharedVault.open({ address, name, coherence, host, group, logger, ...size });
}

/**
 * Makes a client for a long-running process: bad credentials do not throw, a sleeping vault is woken, and a vault with a new
 * certificate is trusted once this machine has joined it again. `targetNow` returns the target as its list has it at the time.
 */
export function lastingClient(
  config: Config,
  targetNow: () => Reached,
  name: RecordClass,
  logger: Logger,
  waker: Waker,
): VaultClient {
  const target = targetNow();
  const { address } = target;
  const { lanes, addresses: locals } = config.sidecar;
  const access = accessTo(config, target, logger);
  const renew = (): ChannelSecurity | null =>
    accessTo(config, targetNow(), silent).security ?? null;
  const onWanted = waker.callOf(address);
  return new VaultClient({ address, name, logger, lanes, locals, onWanted, renew, ...access });
}

type Method<Request, Reply> = Parameters<typeof askOnce<Request, Reply>>[1];

/** Makes one call with this machine's credentials for the vault. Throws the errors of credentials, too. */
export async function askVault<Request, Reply>(
  config: Config,
  target: VaultTarget,
  method: Method<Request, Reply>,
  request: Request,
): Promise<Reply> {
  const { address } = target;
  const security = securityFor(config, target, silent);
  const asked = { name: "the", address, security, timeoutMs: HELLO_TIMEOUT_MS };
  return await askOnce(asked, method, request);
}

export interface Greeted<V extends Vault> {
  clients: Record<RecordClass, V[]>;
  close(): void;
}

/** Connects to all targets, by class. Throws the first error of a hello. */
export async function greeted<V extends Vault>(
  targets: readonly VaultTarget[],
  connect: (target: VaultTarget, name: RecordClass) => VaultLink<V> | Promise<VaultLink<V>>,
  hello: Hello,
): Promise<Greeted<V>> {
  const of = async (name: RecordClass): Promise<VaultLink<V>[]> => {
    const all: VaultLink<V>[] = [];
    for (const target of placesOf(targets, name).values()) all.push(await connect(target, name));
    return all;
  };
  const [kv, ssm] = [await of("kv"), await of("ssm")];
  const close = await helloAll([...kv, ...ssm], hello);
  const clientsOf = (links: readonly VaultLink<V>[]): V[] => links.map(({ client }) => client);
  return { clients: { kv: clientsOf(kv), ssm: clientsOf(ssm) }, close };
}

/** Sends a hello to all, and resolves to the function that closes them. Throws the first error. */
export async function helloAll(all: readonly VaultLink[], hello: Hello): Promise<() => void> {
  const close = (): void => {
    for (const { client } of all) client.close();
  };
  try {
    await Promise.all(all.map(hello));
  } catch (error) {
    close();
    throw error;
  }
  return close;
}

/** Returns the targets of a class, by address. */
export function placesOf(
  targets: readonly VaultTarget[],
  name: RecordClass,
): Map<string, VaultTarget> {
  const of = targets.filter(({ classes }) => classes.includes(name));
  return new Map(of.map((target) => [target.address, target]));
}

/** Makes a client with one lane, so that records arrive in order. Throws USAGE for shared memory and stores of others. */
export function clientOf(
  config: Config,
  target: VaultTarget,
  name: RecordClass,
): VaultLink<VaultClient> {
  if (!isVaultAddress(target.address)) {
    const isShared = sharedPath(target.address) !== null;
    const what = isShared ? "memory of this machine" : "a store that others run";
    const reason = `${target.address} is ${what}, and no member of a pool`;
    throw new TierkvError("USAGE", { reason });
  }
  const level = config.log.level === "debug" ? "debug" : "silent";
  const logger = createLogger("vaults", { level });
  return remoteLink(config, { ...target, classes: [name] }, logger, 1);
}
