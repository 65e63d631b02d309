// Owns the gossip options of a vault, read from its configuration.
import { join } from "node:path";
import type { Logger } from "../../base/log.ts";
import type { VaultCounters } from "../../base/metrics.ts";
import type { VaultConfig } from "../../config/config.ts";
import { PoolKey } from "../../discovery/entry.ts";
import { Gossip } from "../../discovery/gossip.ts";
import type { VaultSecurity } from "../access/identity.ts";

/** null: the vault has no `pool_key`, so it shares no list. Throws CREDENTIALS. */
export function gossipOf(
  { poolKey, peers, stateDir }: VaultConfig,
  security: VaultSecurity | null,
  logger: Logger,
  counters: VaultCounters,
): Gossip | null {
  if (poolKey === null) return null;
  return new Gossip({
    key: PoolKey.read(poolKey),
    peers: peers.map(({ text }) => text),
    file: join(stateDir, "pool.json"),
    certificate: security?.certPem ?? null,
    logger,
    onRefused: (count) => counters.add("listings_refused", count),
  });
}
