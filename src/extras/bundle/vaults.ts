// Owns the connections of `tierkv bundle`: to this machine's vaults by class, and to its sidecar for a request's block.
import type { RecordClass } from "../../base/block.ts";
import { TierkvError } from "../../base/errors.ts";
import { isVaultAddress } from "../../base/hosts.ts";
import { allTargets } from "../../cluster/sources.ts";
import { clientOf, greeted } from "../../cluster/vault-link.ts";
import type { Hello } from "../../cluster/vault-link.ts";
import type { Config } from "../../config/config.ts";
import { askSidecar } from "../../control/ask-sidecar.ts";
import type { Account } from "../../sidecar/trace/decisions.ts";
import { openPool, redundancyOf } from "../../sidecar/vaults/pools.ts";
import type { Pool } from "../../sidecar/vaults/pools.ts";
import type { Clients } from "./selection.ts";

export interface BundleVaults {
  clients: Clients;
  pools: Readonly<Record<RecordClass, Pool>>;
  close(): void;
}

/** Connects to all configured vaults. Shared memory and stores of others are left out, because they keep no sessions. */
export async function openVaults(config: Config, hello: Hello): Promise<BundleVaults> {
  const targets = (await allTargets(config)).filter(({ address }) => isVaultAddress(address));
  const { clients, close } = await greeted(
    targets,
    (target, name) => clientOf(config, target, name),
    hello,
  );
  const options = redundancyOf(config.cluster.redundancy);
  const pools = {
    kv: openPool("kv", clients.kv, options),
    ssm: openPool("ssm", clients.ssm, options),
  };
  return { clients, pools, close };
}

/** Throws USAGE when the sidecar remembers no request of that name. */
export async function explainOne({ sidecar }: Config, request: string): Promise<Account> {
  const [account] = await askSidecar(sidecar.socket, (link) => link.explain(request, 1));
  if (account !== undefined) return account;
  throw new TierkvError("USAGE", { reason: `the sidecar remembers no request "${request}"` });
}
