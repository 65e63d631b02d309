// Owns the vaults in which a gateway looks up blocks: the ones this machine's sidecar would use, as they come and go.
import { existsSync } from "node:fs";
import { toTierkvError } from "../../base/errors.ts";
import { sharedPath, storeKind, unixPath } from "../../base/hosts.ts";
import type { Running } from "../../base/lifecycle.ts";
import { GATEWAY_VAULT_RETRY_MS } from "../../base/limits/gateway.ts";
import { HELLO_TIMEOUT_MS } from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import { UNCOUNTED } from "../../client/source.ts";
import type { Vault } from "../../client/vault.ts";
import { Waker } from "../../client/vault/wake.ts";
import { membersOf } from "../../cluster/sources.ts";
import { vaultTargets } from "../../cluster/targets.ts";
import { linkTo } from "../../cluster/vault-link.ts";
import type { Config } from "../../config/config.ts";
import type { Vaults } from "../gateway.ts";

/** One lane, because a look-up over it takes a third of gRPC's time; the gateway moves no records. */
const LANES = 1;

export interface AskedVaults extends Running {
  vaults: Vaults;
}

/** Leaves out a vault that may not be asked, and tries it again later; each new reason is logged once. */
export async function askVaults(config: Config, logger: Logger): Promise<AskedVaults> {
  const clients = new Map<string, Vault>();
  const add = (client: Vault): void => {
    clients.set(client.address, client);
    // Connects now, because the first look-up would otherwise be late.
    if (isThere(client)) client.hello(HELLO_TIMEOUT_MS).catch(() => {});
  };
  const all = vaultTargets(config).filter(({ classes }) => classes.includes("kv"));
  // A bucket behind another place is asked by sidecars alone: each of its requests has a price.
  const isBucket = ({ address }: { address: string }): boolean => storeKind(address) === "s3";
  const targets = all.every(isBucket) ? all : all.filter((target) => !isBucket(target));
  const written = new Set(targets.map(({ address }) => address));
  const reasons = new Map<string, string>();
  const addWritten = async (): Promise<void> => {
    for (const target of targets) {
      const { address } = target;
      if (clients.has(address)) continue;
      try {
        const only = { ...target, classes: ["kv"] as const };
        add((await linkTo(config, only, logger, LANES)).client);
      } catch (error) {
        const { message: reason } = toTierkvError(error);
        if (reasons.get(address) !== reason)
          logger.warn({ vault: address, reason }, "a vault is not asked for prompts");
        reasons.set(address, reason);
      }
    }
  };
  await addWritten();
  let adding: Promise<void> | null = null;
  const again = setInterval(() => {
    adding ??= addWritten().finally(() => (adding = null));
  }, GATEWAY_VAULT_RETRY_MS);
  again.unref();
  const quiet = { ...config, sidecar: { ...config.sidecar, lanes: LANES } };
  // A look-up is no reason to wake a machine.
  const source = membersOf(quiet, logger, new Waker([], logger), () => {});
  source?.follow((recordClass, list) => {
    if (recordClass !== "kv") return;
    for (const [address, client] of clients) {
      if (list.has(address) || written.has(address)) continue;
      client.close();
      clients.delete(address);
    }
    for (const address of list.keys()) {
      if (!clients.has(address)) add(source.connect("kv", address));
    }
  });
  return {
    vaults: () => [...clients.values()].map(askedOf),
    async close() {
      clearInterval(again);
      source?.close();
      await adding;
      for (const client of clients.values()) client.close();
    },
  };
}

/** False for a socket that does not exist: a gateway-only machine has no vault, though its configuration names one. */
function isThere({ address }: Vault): boolean {
  const path = unixPath(address);
  return path === null || existsSync(path);
}

/** Shared memory is asked even while it counts as down, because asking is how it is found again. */
const isShared = ({ address }: Vault): boolean => sharedPath(address) !== null;

function askedOf(client: Vault): ReturnType<Vaults>[number] {
  return {
    address: client.address,
    isOpen: !isThere(client) || (!isShared(client) && client.isDown),
    lookup: (namespace, keys, deadlineMs, tenant) =>
      client.lookup(namespace, keys, deadlineMs, { ...UNCOUNTED, tenant }),
  };
}
