// Owns the calls by which a vault is emptied: it takes nothing new, tells all who watch, and lists what it holds.
import { className, classNumber } from "../block.ts";
import { storeDrainAway, storeList, storeStats } from "../native.ts";
import type * as m from "../wire/messages.ts";
import type { VaultContext } from "./context.ts";
import type { Caller } from "./gate.ts";

export function drainAway(
  vault: VaultContext,
  { end }: m.DrainRequest,
  { peer, role }: Caller,
): m.DrainReply {
  const { store, watchers, audit, logger } = vault;
  storeDrainAway(store, !end);
  watchers.tellDraining(!end);
  audit.record("admin_call", { peer, role, call: "Drain", end });
  logger.info(end ? "takes records again" : "takes no new records: those it has move to others");
  return { reservedBytes: storeStats(store).reservedBytes };
}

export async function list(
  { store, models, sessions }: VaultContext,
  request: m.ListRequest,
): Promise<m.ListReply> {
  const { recordClass, after, session } = request;
  const of = session === "" ? undefined : sessions.numberOf(request);
  const page = await storeList(store, classNumber(className(recordClass)), after, of);
  return { ...page, model: models.modelOf(page.namespace) };
}
