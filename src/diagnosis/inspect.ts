// Owns the inspection of each target for `tierkv status`: whether it answers, how fast, and its own figures.
import { vaultClassName } from "../base/block.ts";
import type { RecordClass } from "../base/block.ts";
import { toTierkvError } from "../base/errors.ts";
import { sharedPath, storeKind } from "../base/hosts.ts";
import { STATUS_SAMPLES, STATUS_TIMEOUT_MS } from "../base/limits/general.ts";
import { silent } from "../base/log.ts";
import { storeCounts } from "../base/store-counts.ts";
import { nowMs } from "../base/time.ts";
import type { StoreNode } from "../client/source.ts";
import { isRemote } from "../client/vault.ts";
import type { Vault } from "../client/vault.ts";
import { knownTargets } from "../cluster/sources.ts";
import type { VaultRole, VaultTarget } from "../cluster/targets.ts";
import { linkTo } from "../cluster/vault-link.ts";
import type { Config } from "../config/config.ts";
import { statusSeen } from "../control/ask-sidecar.ts";
import { SidecarLink } from "../control/sidecar-link.ts";
import type { ShownFleet } from "../gateway/control.ts";
import type { EngineFidelity } from "../sidecar/engine/engine-status.ts";
import type { Form } from "../sidecar/save/codec-choice.ts";
import type { SidecarStatus, VaultStatus } from "../sidecar/status.ts";
import type { DiskStats } from "../wire/messages.ts";
import { sayHello, laneTrouble } from "./reach.ts";

/** Figures of one target; null where it is down or the value does not apply. */
export interface TargetStatus {
  /** `sidecar`; a vault's role: `kv_cold`, `ssm_cold` or `cold`; or `vault (local)`: the vault that the sidecar started. */
  target: string;
  /** Address as configured or discovered, or path of the socket. */
  address: string;
  /** Whether it answered this command. */
  reachable: boolean;
  /** Whether it was not asked, because the connection would have been in the clear or without credentials. */
  refused: boolean;
  /** True for a vault that this command does not reach, while the sidecar reaches it over another path; left out: it is not so. */
  isElsewhere?: true;
  /** A vault: the reason why its lanes do not work; null: they do. */
  laneTrouble: string | null;
  /** Median of the round trips, in milliseconds; null: no answer. */
  rttMsP50: number | null;
  /** The same, 99th percentile. */
  rttMsP99: number | null;
  /** Release of its software. */
  version: string | null;
  /** Of a sidecar `inference`; of a vault `kv_cold`, `ssm_cold` or `cold`, by the records that it keeps; null: no answer. */
  role: string | null;
  /** Memory in use: records of a vault, or a sidecar's arenas. */
  usedBytes: number | null;
  /** Memory that a vault may use, or the configured ceiling of one engine's arena; null: not known, or not configured. */
  maxBytes: number | null;
  /** Records in memory. */
  records: number | null;
  /** Share of looked-up keys that were held, since the target started. */
  hitRate: number | null;
  /** Records evicted from memory since the target started. */
  evicted: number | null;
  /** A vault: lanes open, and record bytes per second from it and to it, over about the last ten seconds. */
  traffic: { lanes: number; outBytesPerS: number; inBytesPerS: number } | null;
  /** A sidecar: states of its lanes, and record bytes per second while any record travelled; a rate is null before. */
  travel: Travel | null;
  /** A sidecar: the vaults of each class with several; null: no class has. */
  pools: readonly Pooled[] | null;
  /** A vault: whether it takes no new records, because it is being drained. */
  draining: boolean | null;
  /** A vault: number of sessions, and bytes kept of them. */
  sessions: { count: number; keptBytes: number } | null;
  /** A vault: its disk tier. */
  disk: DiskStats | null;
  /** A store that others run: what its nodes say of their memory, empty for a bucket; null: no such store. */
  nodes: readonly StoreNode[] | null;
  /** A sidecar: engines connected. */
  engines: number | null;
  /** A sidecar: the kind of each engine, with its software where it is not vLLM. */
  kinds: string[] | null;
  /** A sidecar: connected engines that may restore. */
  restoring: number | null;
  /** A sidecar: whether an engine, or the sidecar itself, has blocks left to save. */
  isSaving: boolean | null;
  /** A sidecar: codec of attention KV. */
  kvCodec: string | null;
  /** A sidecar: whether each engine's attention KV comes back bit for bit, and why. */
  fidelity: ({ engine: string; model: string } & EngineFidelity)[] | null;
  /** A sidecar: the codec chosen for each vault by `[codec] kv = "auto"`. */
  forms: { address: string; form: Form }[] | null;
  /** Everything the target has counted since it started; of a store, what the sidecar counted there. */
  counters: Readonly<Record<string, number>> | null;
  /** Why it did not answer, and the fix; null: it did. */
  error: string | null;
}

/** A sidecar's figures of one vault in a pool. */
export interface Pooled extends Pick<VaultStatus, "address" | "share" | "holes" | "moved"> {
  /** Class of records: `kv` or `ssm`. */
  class: string;
}

export interface Travel {
  /** By class: `up` if all vaults' lanes are up, else the first other state, and the number of such vaults. */
  lanes: Partial<Record<RecordClass, string>>;
  /** Paths to vaults that are out of use while another path is used. */
  cut: readonly string[];
  /** Restored record bytes per second, while any travelled; null: none did. */
  restoreBytesPerS: number | null;
  /** The same of saves. */
  saveBytesPerS: number | null;
}

/** Result of inspecting a set-up. */
export interface Seen {
  config: Config;
  /** Every vault, after the sidecar where this machine has engines. */
  targets: readonly TargetStatus[];
  /** Status of the sidecar; null: it did not answer, or this machine has no engines. */
  sidecar: SidecarStatus | null;
  /** Why names of the configuration stand for no vault; left out: they do, or there are none. */
  names?: readonly string[];
  /** Why there is no list of vaults now, where the last one stays in use. */
  outdated?: readonly string[];
  /** Status of this user's gateway; null: there is none; left out: it was not asked. */
  fleet?: ShownFleet | null;
  /** Why a gateway of this user that runs does not answer; empty or left out: it does, or none runs. */
  fleetTrouble?: string;
}

/** Asks all targets concurrently; `onWait` has the addresses that have not answered yet, whenever one did. */
export async function inspect(
  config: Config,
  onWait: (addresses: readonly string[]) => void = () => {},
): Promise<Seen> {
  const isEngineHost = config.cluster.role === "inference";
  const { targets: asked, failures, outdated } = await knownTargets(config);
  const waiting = new Set(asked.map(({ address }) => address));
  onWait([...waiting]);
  const [own, ...vaults] = await Promise.all([
    isEngineHost ? inspectSidecar(config) : null,
    ...asked.map(async (target) => {
      const found = await inspectVault(target, config);
      waiting.delete(target.address);
      onWait([...waiting]);
      return found;
    }),
  ]);
  const sidecar = own?.status ?? null;
  const seen = vaults.map((target) => elsewhere(withSidecarsCounts(target, sidecar), sidecar));
  const targets = own === null ? seen : [own.target, ...seen];
  const names = failures.map(({ message }) => message);
  return { config, targets, sidecar, names, outdated: outdated.map(({ message }) => message) };
}

/** A store counts nothing: its clients do, and the sidecar's counts tell more than this command's. Exported for its test. */
export function withSidecarsCounts(
  target: TargetStatus,
  sidecar: SidecarStatus | null,
): TargetStatus {
  if (storeKind(target.address) === null) return target;
  const all = storeCounts(Object.values(sidecar?.vaults ?? {}).flat());
  const counters = all.find(({ address }) => address === target.address)?.counts ?? null;
  return { ...target, counters, hitRate: counters === null ? null : hitRate(counters) };
}

/** Marks a vault at whose configured address nobody answers, and that the sidecar reaches over another. */
function elsewhere(target: TargetStatus, sidecar: SidecarStatus | null): TargetStatus {
  if (target.error === null) return target;
  const isUsed = Object.values(sidecar?.vaults ?? {})
    .flat()
    .some(
      ({ address, state, cut }) =>
        address === target.address && state === "up" && (cut?.length ?? 0) > 0,
    );
  return isUsed ? { ...target, isElsewhere: true } : target;
}

/** Returns why a command cannot move records of a vault; null: it can. */
export function troubleOf({ targets }: Seen, address: string): string | null {
  const target = targets.find((one) => one.address === address);
  return target?.error ?? target?.laneTrouble ?? null;
}

async function inspectVault(target: VaultTarget, config: Config): Promise<TargetStatus> {
  const { name, address } = target;
  let client: Vault | null = null;
  try {
    const link = await linkTo(config, target, silent, 1);
    ({ client } = link);
    await sayHello(link.client, link.isTls);
    const rtt = await roundTrips(() => link.client.health(STATUS_TIMEOUT_MS));
    const stats = await client.stats(STATUS_TIMEOUT_MS);
    return {
      ...blank(name, address),
      ...rtt,
      reachable: true,
      laneTrouble: await laneTrouble(client),
      version: stats.version,
      role: roleOf(stats.recordClass),
      usedBytes: stats.usedBytes,
      maxBytes: stats.maxBytes,
      records: stats.records,
      hitRate: hitRate(stats.counters),
      evicted: stats.counters["evicted"] ?? 0,
      draining: stats.draining,
      sessions: { count: stats.sessions, keptBytes: stats.keptBytes },
      // A shared region counts only this process's bytes.
      traffic: isRemote(client)
        ? {
            lanes: stats.lanes,
            outBytesPerS: stats.outBytesPerS,
            inBytesPerS: stats.inBytesPerS,
          }
        : null,
      disk: stats.disk ?? null,
      nodes: "nodes" in client ? await client.nodes(STATUS_TIMEOUT_MS) : null,
      counters: stats.counters,
    };
  } catch (error) {
    const { message } = toTierkvError(error);
    const refused = client === null && sharedPath(address) === null;
    return { ...blank(name, address), refused, error: message };
  } finally {
    client?.close();
  }
}

function roleOf(recordClass: number): VaultRole {
  const name = vaultClassName(recordClass);
  return name === "both" ? "cold" : `${name}_cold`;
}

interface OwnSidecar {
  target: TargetStatus;
  status: SidecarStatus | null;
}

async function inspectSidecar({ sidecar }: Config): Promise<OwnSidecar> {
  const link = new SidecarLink(sidecar.socket);
  try {
    const version = await link.hello();
    const rtt = await roundTrips(() => link.ping());
    // As its vaults answer now: one that has just gone would still be up.
    const status = await statusSeen(link);
    const target: TargetStatus = {
      ...blank("sidecar", sidecar.socket),
      ...rtt,
      reachable: true,
      version,
      role: "inference",
      usedBytes: status.arenaBytes,
      maxBytes: status.arenaBytesMax,
      hitRate: hitRate(status.counters),
      engines: status.engines.length,
      kinds: status.engines.map(({ kind, software }) => (kind === "vllm" ? kind : software)),
      restoring: status.engines.filter(({ isRestoring }) => isRestoring).length,
      isSaving: status.saves.queuedBlocks > 0 || status.engines.some(({ isSaving }) => isSaving),
      kvCodec: status.kvCodec,
      fidelity: status.engines.map(({ id: engine, model, fidelity }) => ({
        engine,
        model,
        ...fidelity,
      })),
      forms: status.vaults.kv.flatMap(({ address, form }) =>
        form === null ? [] : [{ address, form }],
      ),
      travel: travelOf(status),
      pools: poolsOf(status),
      counters: status.counters,
    };
    return { target, status };
  } catch (error) {
    const target = { ...blank("sidecar", sidecar.socket), error: toTierkvError(error).message };
    return { target, status: null };
  } finally {
    link.close();
  }
}

function travelOf({ vaults, counters }: SidecarStatus): Travel {
  const rate = (bytes: string, us: string): number | null => {
    const busyUs = counters[us] ?? 0;
    return busyUs === 0 ? null : Math.round(((counters[bytes] ?? 0) / busyUs) * 1e6);
  };
  return {
    lanes: {
      ...lanesOf("kv", vaults.kv),
      ...lanesOf("ssm", vaults.ssm),
    },
    // A running sidecar of an earlier release sends none.
    cut: [...new Set([...vaults.kv, ...vaults.ssm].flatMap(({ cut = [] }) => cut))],
    restoreBytesPerS: rate("bytes_fetched", "fetch_busy_us"),
    saveBytesPerS: rate("bytes_sent", "store_busy_us"),
  };
}

function poolsOf({ vaults }: SidecarStatus): Pooled[] | null {
  const all = Object.entries(vaults).flatMap(([name, of]) => {
    const members = of.filter(({ tier }) => tier !== "shared");
    return members.length < 2
      ? []
      : members.map(({ address, share, holes, moved }) => {
          return { class: name, address, share, holes, moved };
        });
  });
  return all.length === 0 ? null : all;
}

function lanesOf(
  name: RecordClass,
  vaults: readonly Pick<VaultStatus, "lanes" | "hasLeft">[],
): Partial<Record<RecordClass, string>> {
  const members = vaults.filter(({ hasLeft }) => hasLeft !== true);
  const [first] = members;
  if (first === undefined) return {};
  const others = members.filter(({ lanes }) => lanes !== "up");
  const state = others[0]?.lanes ?? first.lanes;
  const isSome = others.length > 0 && others.length < members.length;
  return { [name]: isSome ? `${state} to ${others.length} of ${members.length}` : state };
}

function blank(target: string, address: string): TargetStatus {
  return {
    target,
    address,
    reachable: false,
    refused: false,
    laneTrouble: null,
    rttMsP50: null,
    rttMsP99: null,
    version: null,
    role: null,
    usedBytes: null,
    maxBytes: null,
    records: null,
    hitRate: null,
    evicted: null,
    draining: null,
    traffic: null,
    sessions: null,
    travel: null,
    pools: null,
    disk: null,
    nodes: null,
    engines: null,
    kinds: null,
    restoring: null,
    isSaving: null,
    kvCodec: null,
    fidelity: null,
    forms: null,
    counters: null,
    error: null,
  };
}

/** Times STATUS_SAMPLES sequential calls, after one that opens the connection. */
async function roundTrips(
  call: () => Promise<unknown>,
): Promise<Pick<TargetStatus, "rttMsP50" | "rttMsP99">> {
  await call();
  const samples: number[] = [];
  for (let sample = 0; sample < STATUS_SAMPLES; sample += 1) {
    const startMs = nowMs();
    await call();
    samples.push(nowMs() - startMs);
  }
  return { rttMsP50: percentile(samples, 0.5), rttMsP99: percentile(samples, 0.99) };
}

/** Returns the nearest-rank percentile, which is always a measured value. */
export function percentile(samples: readonly number[], share: number): number {
  const sorted = [...samples].sort((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)] ?? Number.NaN;
}

function hitRate(counters: Readonly<Record<string, number>>): number | null {
  const asked = counters["lookup_keys"] ?? 0;
  return asked === 0 ? null : (counters["lookup_hits"] ?? 0) / asked;
}
