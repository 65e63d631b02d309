// Owns the calls Drain, List and Weigh, which empty a vault or change its weight.
import { className, classNumber } from "../../base/block.ts";
import { TierkvError } from "../../base/errors.ts";
import { VAULT_WEIGHT_LEAST, VAULT_WEIGHT_MOST } from "../../base/limits/pool.ts";
import { storeDrainAway, storeList, storeStats } from "../../base/native.ts";
import type * as m from "../../wire/messages.ts";
import type { Caller } from "../access/gate.ts";
import { isWeight } from "../state/weight.ts";
import type { VaultContext } from "./context.ts";

export function drainAway(
  vault: VaultContext,
  { end }: m.DrainRequest,
  { peer, role }: Caller,
): m.DrainReply {
  const { store, watchers, audit, logger } = vault;
  storeDrainAway(store, !end);
  watchers.tellDraining(!end);
  audit.record("admin_call", { peer, role, call: "Drain", end });
  logger.info(
    end
      ? "takes records again"
      : "draining: new records are refused, and held ones are being copied",
  );
  return { reservedBytes: storeStats(store).reservedBytes };
}

export async function list(
  { store, models, sessions }: VaultContext,
  request: m.ListRequest,
): Promise<m.ListReply> {
  const { recordClass, after, session, hot } = request;
  const of = session === "" ? undefined : sessions.numberOf(request);
  const page = await storeList(store, classNumber(className(recordClass)), after, of, hot);
  return { ...page, model: models.modelOf(page.namespace) };
}

export function weigh(
  { weight, watchers, audit, logger }: VaultContext,
  { weight: given }: m.WeighRequest,
  { peer, role }: Caller,
): m.WeighReply {
  if (!isWeight(given)) {
    const reason = `a weight of ${given}; it is ${VAULT_WEIGHT_LEAST} to ${VAULT_WEIGHT_MOST}`;
    throw new TierkvError("BAD_ARGUMENT", { reason });
  }
  const kept = weight.set(given);
  watchers.tellShare();
  audit.record("admin_call", { peer, role, call: "Weigh", weight: given });
  logger.info({ weight: given, kept }, "another weight in the pool");
  return { kept };
}
