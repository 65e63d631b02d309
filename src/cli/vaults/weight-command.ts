// Owns `tierkv vaults weight`: sets the factor by which a vault's capacity counts in its pool.
import { TierkvError } from "../../base/errors.ts";
import { isVaultAddress } from "../../base/hosts.ts";
import { VAULT_WEIGHT_LEAST, VAULT_WEIGHT_MOST } from "../../base/limits/pool.ts";
import { allTargets, targetAt } from "../../cluster/sources.ts";
import { vaultService } from "../../wire/service.ts";
import type { Call } from "../shell/call.ts";
import { listed } from "../shell/looking.ts";
import { askOne } from "./greeting.ts";

export async function weighVault(call: Call): Promise<void> {
  const [address = "", given = ""] = call.args;
  const weight = Number(given);
  if (given.trim() === "" || !(weight >= VAULT_WEIGHT_LEAST && weight <= VAULT_WEIGHT_MOST)) {
    const reason = `weight ${given.slice(0, 100)}: give a number of ${VAULT_WEIGHT_LEAST} to ${VAULT_WEIGHT_MOST}; 1 is what a vault begins with`;
    throw new TierkvError("USAGE", { reason });
  }
  if (!isVaultAddress(address)) {
    const reason = `${address.slice(0, 100)}: only a vault has a weight, and this names a store or memory`;
    throw new TierkvError("USAGE", { reason });
  }
  const config = call.loadConfig();
  const target = targetAt(await listed(call.io, () => allTargets(config)), address);
  const { kept } = await askOne(call, config, target, vaultService.Weigh, { weight });
  call.print({ address, weight, kept }, [
    `${address} counts ${weight} times what it has room for${kept ? "" : ", until it is started again"}; all sidecars hear of it now (\`tierkv vaults ls\`)`,
  ]);
}
