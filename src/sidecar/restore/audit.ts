// Owns audits: whether vaults hold given blocks now, asked by an engine that publishes KV-cache events. The arena does not count.
import { HASH_BYTES, newBitmap } from "../../base/block.ts";
import type { Namespace } from "../../base/block.ts";
import { AUDIT_TIMEOUT_MS } from "../../base/limits/again.ts";
import type { Logger } from "../../base/log.ts";
import { newSidecarCounters } from "../../base/metrics.ts";
import type { SidecarCounters } from "../../base/metrics.ts";
import { NO_VAULT } from "../../pool/placement.ts";
import type { Audit, SidecarMessage } from "../socket/messages.ts";
import type { Quarantine } from "../vaults/quarantine.ts";
import type { LookupGates } from "../vaults/vaults.ts";
import { lookUp } from "./lookup.ts";

export interface AuditContext {
  namespace: Namespace | null;
  shards: number;
  gates: LookupGates;
  quarantine: Pick<Quarantine, "has">;
  counters: SidecarCounters;
  logger: Logger;
}

/** Placement of an audit: its blocks form no prompt, so their positions name no vault, and every vault is asked. */
const ALONE = {
  placesOf: () => ({ owners: new Uint8Array(0), others: [] }),
  ownerInPeace: () => NO_VAULT,
};

/** Returns the answer, and never fails. A silent vault counts as holding nothing, as does a quarantined namespace. */
export async function audit({ n, groups }: Audit, context: AuditContext): Promise<SidecarMessage> {
  const { namespace, shards, gates, quarantine, counters, logger } = context;
  const found = groups.map(({ group, hashes }) => ({
    group,
    held: newBitmap(hashes.length / HASH_BYTES),
  }));
  counters.add("audits");
  if (namespace === null || quarantine.has(namespace)) return { t: "audited", n, groups: found };
  const each = Array.from({ length: Math.max(gates.kv.length, gates.ssm.length) }, (_, vault) =>
    lookUp(groups, {
      namespace,
      shards,
      cache: null,
      pools: { kv: ALONE, ssm: ALONE },
      gates: { kv: gates.kv.slice(vault, vault + 1), ssm: gates.ssm.slice(vault, vault + 1) },
      isWanted: () => true,
      timeoutMs: AUDIT_TIMEOUT_MS,
      // Sidecar and vaults count look-ups of requests, and an audit is none.
      isCounted: false,
      counters: newSidecarCounters(),
      logger,
    }),
  );
  for (const answer of await Promise.all(each)) {
    for (const [at, { held: all }] of found.entries()) {
      answer.groups[at]?.held.forEach((bits, byte) => (all[byte] = (all[byte] ?? 0) | bits));
    }
  }
  return { t: "audited", n, groups: found };
}
