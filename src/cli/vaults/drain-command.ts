// Owns `tierkv vaults drain`: finds the pool, drains one of its vaults, and prints the outcome.
import { RECORD_CLASSES } from "../../base/block.ts";
import type { RecordClass } from "../../base/block.ts";
import { TierkvError } from "../../base/errors.ts";
import { isVaultAddress } from "../../base/hosts.ts";
import { CALL_TIMEOUT_MS } from "../../base/limits/general.ts";
import { showBytes } from "../../base/text.ts";
import type { VaultClient } from "../../client/vault/vault-client.ts";
import { allTargets, targetAt } from "../../cluster/sources.ts";
import type { VaultTarget } from "../../cluster/targets.ts";
import { clientOf, placesOf } from "../../cluster/vault-link.ts";
import type { VaultLink } from "../../cluster/vault-link.ts";
import { loadRecordKeys } from "../../config/conditions.ts";
import type { Config } from "../../config/config.ts";
import { sizeOf } from "../../extras/plan/inputs.ts";
import { Drain } from "../../moving/drain.ts";
import type { Drained } from "../../moving/drain.ts";
import { openPool, redundancyOf } from "../../sidecar/vaults/pools.ts";
import type { Call } from "../shell/call.ts";
import { listed } from "../shell/looking.ts";
import { Progress } from "../shell/progress.ts";
import { greetAll } from "./greeting.ts";
import { isPooled } from "./pooling.ts";

/** Reasons that a second run would not change. */
const FINAL: ReadonlySet<string> = new Set(["unreachable", "missing"]);
const WHY: Readonly<Record<string, string>> = {
  unreachable: "blocks before them are gone, so that no restore gets as far",
  missing: "evicted meanwhile",
  sealed: "sealed with keys that [sidecar] record_keys here does not have",
};

interface Done extends Drained {
  class: RecordClass;
  /** Records that the other vaults evicted during the drain, for any reason. */
  evicted: number;
}

export interface DrainFlags {
  rate?: string;
  end?: boolean;
}

export async function drainVault(call: Call<DrainFlags>): Promise<boolean> {
  const [address = ""] = call.args;
  const { rate, end = false } = call.options;
  const config = call.loadConfig();
  const targets = await listed(call.io, () => allTargets(config));
  const target = targetAt(targets, address);
  // A vault of both classes may be in both lists.
  const classes = RECORD_CLASSES.filter((name) => placesOf(targets, name).has(address));
  if (end) {
    for (const name of classes) await takeAgain(call, clientOf(config, target, name));
    call.print({ address, draining: false }, [`${address} takes records again`]);
    return true;
  }
  const alone = classes.find((name) => membersOf(targets, name, address).length === 1);
  if (alone !== undefined) {
    const reason = `${address} is the only ${alone} vault: nobody could take what it holds`;
    throw new TierkvError("USAGE", { reason });
  }
  await loadRecordKeys(config);
  const bytesPerS = rate === undefined ? null : sizeOf("--rate", rate, 1);
  const results: Done[] = [];
  for (const name of classes) {
    const links = membersOf(targets, name, address).map((place) => clientOf(config, place, name));
    // All must answer, because a silent vault would miss its share, and sidecars would look for it there.
    const close = await greetAll(call, links);
    try {
      const clients = links.map(({ client }) => client);
      results.push(await emptied(call, config, clients, address, bytesPerS));
    } finally {
      close();
    }
  }
  const lines = [...results.flatMap(describe), next(address, isPooled(config))];
  call.print({ address, drained: results }, lines);
  return results.every(({ left }) => Object.keys(left).every((why) => FINAL.has(why)));
}

/** Returns the vaults of a class: shared memory and stores before them belong to no pool, unless that is what is to be drained. */
function membersOf(
  targets: readonly VaultTarget[],
  name: RecordClass,
  drained: string,
): VaultTarget[] {
  return [...placesOf(targets, name).values()].filter(
    ({ address }) => isVaultAddress(address) || address === drained,
  );
}

async function takeAgain(call: Call, link: VaultLink<VaultClient>): Promise<void> {
  const close = await greetAll(call, [link]);
  try {
    await link.client.drain(CALL_TIMEOUT_MS, true);
  } finally {
    close();
  }
}

async function emptied(
  call: Call,
  { cluster }: Config,
  clients: readonly VaultClient[],
  address: string,
  rate: number | null,
): Promise<Done> {
  const source = clients.find((client) => client.address === address);
  if (source === undefined)
    throw new TierkvError("INTERNAL", { reason: `no client of ${address}` });
  const { name } = source;
  // Looked at before the vault is told to refuse records: else a pool could end with no vault that takes any.
  if (clients.every((client) => client === source || client.isDraining)) {
    const others = clients.filter((client) => client !== source).map((client) => client.address);
    const reason = `nobody could take what ${address} holds: ${others.join(", ")} drain${others.length === 1 ? "s" : ""} too; end that first (\`tierkv vaults drain ${others[0]} --end\`)`;
    throw new TierkvError("USAGE", { reason });
  }
  const progress = new Progress(call.io);
  const drain = new Drain({
    source,
    clients,
    pool: openPool(name, clients, redundancyOf(cluster.redundancy)),
    rate,
    onProgress: (done, all) => progress.at(done, all, `${name} records of ${address}`),
  });
  progress.at(0, 0, `${name} records of ${address}`);
  const before = await evictedOf(clients, source);
  try {
    await progress.during(() => drain.run());
  } catch (error) {
    const { moved, present } = drain.drained;
    const isBegun = moved.records + present.records > 0;
    const lines = isBegun ? describe({ class: name, evicted: 0, ...drain.drained }) : [];
    for (const line of lines) call.io.err(line);
    throw error;
  }
  const evicted = (await evictedOf(clients, source)) - before;
  return { class: name, ...drain.drained, evicted };
}

async function evictedOf(clients: readonly VaultClient[], source: VaultClient): Promise<number> {
  const others = clients.filter((client) => client !== source);
  const all = await Promise.all(
    others.map(async (client) => {
      const stats = await client.stats(CALL_TIMEOUT_MS).catch(() => null);
      return stats?.counters["evicted"] ?? 0;
    }),
  );
  return all.reduce((sum, count) => sum + count, 0);
}

function describe({ class: name, moved, present, left, evicted }: Done): string[] {
  const lines = [
    `${name}: ${moved.records} records moved (${showBytes(moved.bytes)}), ${present.records} were there already (${showBytes(present.bytes)})`,
    ...Object.entries(left).map(
      ([why, { records, bytes }]) =>
        `  ${records} stayed (${showBytes(bytes)}): ${WHY[why] ?? why.replaceAll("_", " ")}`,
    ),
  ];
  if (evicted > 0) lines.push(`  the others evicted ${evicted} records meanwhile: they are full`);
  return lines;
}

function next(address: string, inPool: boolean): string {
  const out = inPool
    ? `run \`tierkv vaults remove ${address}\` once, which takes it out of the pool`
    : `take it out of [cluster] on all machines (\`tierkv vaults remove ${address}\`)`;
  return `${address} takes nothing new: ${out}, then stop it`;
}
