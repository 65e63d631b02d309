// Owns changes to a pool's list from another machine.
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { namesIn, sourceOf } from "../../base/hosts.ts";
import { allTargets } from "../../cluster/sources.ts";
import type { Config } from "../../config/config.ts";
import { vaultService } from "../../wire/service.ts";
import type { Call } from "../shell/call.ts";
import { listed } from "../shell/looking.ts";
import { askOne } from "./greeting.ts";

/** Whether vaults keep the list: this machine's own, or a `pool:` entry's. */
export function isPooled({ cluster, vault }: Config): boolean {
  if (cluster.role !== "inference" && vault.poolKey !== null) return true;
  return [...cluster.kvCold, ...cluster.ssmCold].some(({ text }) => sourceOf(text) === "pool");
}

/** Next step where a pool has no other vault. */
const ALONE = {
  added: "start another vault with [vault] pool_key and peers",
  removed: "to end the pool, stop the vault",
} as const;

/** Runs `tierkv vaults add|remove` where vaults keep the list: notifies one of them, which tells the others. */
export async function changePool(call: Call, config: Config, isAdded: boolean): Promise<void> {
  const [address = ""] = call.args;
  const shown = address.slice(0, 100);
  const told = (await listed(call.io, () => allTargets(config))).filter(
    (target) => target.address !== address && (target.isOwn || target.listed !== undefined),
  );
  let failure: TierkvError = new TierkvError("USAGE", {
    reason: `this machine knows no other vault of the pool than ${shown}, and a pool's list changes at another vault of it: ${ALONE[isAdded ? "added" : "removed"]}`,
  });
  for (const target of told) {
    try {
      const request = { address, gone: !isAdded };
      const { known } = await askOne(call, config, target, vaultService.Admit, request);
      if (!known) {
        const reason = `${shown}: no vault of the pool has that address; a new one comes by itself, with [vault] pool_key and peers`;
        throw new TierkvError("USAGE", { reason });
      }
      const said = isAdded ? "belongs to the pool" : "has left the pool: stop it if it still runs";
      const remark = isAdded ? [] : stillNamed(config, address, target.address);
      const lines = [`${address} ${said}`, ...remark];
      call.print({ address, gone: !isAdded, toldTo: target.address }, lines);
      return;
    } catch (error) {
      failure = toTierkvError(error);
      if (failure.code === "USAGE") break;
    }
  }
  throw failure;
}

/** Says that this machine learns the pool's list from the vault that has left, which is to be stopped. Exported for its test. */
export function stillNamed({ cluster, path }: Config, address: string, other: string): string[] {
  const lists = { kv_cold: cluster.kvCold, ssm_cold: cluster.ssmCold };
  return Object.entries(lists).flatMap(([key, list]) => {
    const found = list.find(({ text }) => sourceOf(text) === "pool" && namesIn(text) === address);
    if (found === undefined) return [];
    const where = path === null ? "" : ` in ${path}`;
    return [`[cluster] ${key}${where} names it: write "pool:${other}" in place of "${found.text}"`];
  });
}
