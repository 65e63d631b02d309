// Owns `tierkv vaults weight`: telling a vault what its capacity counts times as its share of its pool.
import { askOnce } from "../client/ask.ts";
import { TierkvError } from "../errors.ts";
import { HELLO_TIMEOUT_MS } from "../limits/general.ts";
import { VAULT_WEIGHT_LEAST, VAULT_WEIGHT_MOST } from "../limits/pool.ts";
import { createLogger } from "../log.ts";
import { vaultService } from "../wire/service.ts";
import type { Call } from "./call.ts";
import { securityFor } from "./credentials.ts";
import { allTargets } from "./sources.ts";

export async function weighVault(call: Call): Promise<number> {
  const [address = "", given = ""] = call.args;
  const weight = Number(given);
  if (given.trim() === "" || !(weight >= VAULT_WEIGHT_LEAST && weight <= VAULT_WEIGHT_MOST)) {
    const reason = `weight ${given.slice(0, 100)}: give a number of ${VAULT_WEIGHT_LEAST} to ${VAULT_WEIGHT_MOST}; 1 is what a vault begins with`;
    throw new TierkvError("USAGE", { reason });
  }
  const config = call.loadConfig();
  const targets = await allTargets(config);
  const target = targets.find((one) => one.address === address);
  if (target === undefined) {
    const known = targets.map((one) => one.address).join(", ");
    const reason = `${address.slice(0, 100)} is no vault of this machine's configuration (${known})`;
    throw new TierkvError("USAGE", { reason });
  }
  const security = securityFor(config, target, createLogger("vaults", { level: "silent" }));
  const asked = { name: "the", address, security, timeoutMs: HELLO_TIMEOUT_MS };
  const { kept } = await askOnce(asked, vaultService.Weigh, { weight });
  call.print({ address, weight, kept }, [
    `${address} counts ${weight} times what it has room for${kept ? "" : ", until it is started again"}; all sidecars hear of it now (\`tierkv vaults ls\`)`,
  ]);
  return 0;
}
