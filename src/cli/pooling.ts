// Owns what the configuration of a vault says of its pool's list, and changing that list from another machine.
import { join } from "node:path";
import { askOnce } from "../client/ask.ts";
import type { Config, VaultConfig } from "../config/config.ts";
import { PoolKey } from "../discovery/entry.ts";
import { Gossip } from "../discovery/gossip.ts";
import { TierkvError } from "../errors.ts";
import { sourceOf } from "../hosts.ts";
import { HELLO_TIMEOUT_MS } from "../limits.ts";
import { createLogger } from "../log.ts";
import type { Logger } from "../log.ts";
import { vaultService } from "../wire/service.ts";
import type { Call } from "./call.ts";
import { securityFor } from "./credentials.ts";
import { allTargets } from "./sources.ts";

/** null: the vault keeps no list with others. Throws CREDENTIALS. */
export function gossipOf(
  { poolKey, peers, stateDir }: VaultConfig,
  certificate: Buffer | null,
  logger: Logger,
  onRefused: (count: number) => void,
): Gossip | null {
  if (poolKey === null) return null;
  return new Gossip({
    key: PoolKey.read(poolKey),
    peers: peers.map(({ text }) => text),
    file: join(stateDir, "pool.json"),
    certificate,
    logger,
    onRefused,
  });
}

/** Whether the vaults keep the list: this machine's vault among others, or those that it asks. */
export function isPooled({ cluster, vault }: Config): boolean {
  if (cluster.role !== "inference" && vault.poolKey !== null) return true;
  return [...cluster.kvCold, ...cluster.ssmCold].some(({ text }) => sourceOf(text) === "pool");
}

/** `tierkv vaults add|remove` where the vaults keep the list: one of them is told, and tells the others. */
export async function changePool(call: Call, config: Config, isAdded: boolean): Promise<number> {
  const [address = ""] = call.args;
  const logger = createLogger("vaults", { level: "silent" });
  let failure: unknown = null;
  for (const target of await allTargets(config)) {
    if (target.address === address || !(target.isOwn || target.listed !== undefined)) continue;
    try {
      const security = securityFor(config, target, logger);
      const at = { name: "the", address: target.address, security, timeoutMs: HELLO_TIMEOUT_MS };
      const { known } = await askOnce(at, vaultService.Admit, { address, gone: !isAdded });
      if (!known) {
        const reason = `${address.slice(0, 100)}: no vault of the pool has that address; a new one comes by itself, with [vault] pool_key and peers`;
        throw new TierkvError("USAGE", { reason });
      }
      const said = isAdded ? "belongs to the pool" : "has left the pool: stop it";
      call.print({ address, gone: !isAdded, toldTo: target.address }, [`${address} ${said}`]);
      return 0;
    } catch (error) {
      if (error instanceof TierkvError && error.code === "USAGE") throw error;
      failure ??= error;
    }
  }
  if (failure !== null) throw failure;
  const reason = `no vault of the pool but ${address.slice(0, 100)} can be told`;
  throw new TierkvError("USAGE", { reason });
}
