// Owns the findings about a running set-up, which `tierkv status` and `tierkv doctor` print first.
import { arenaBytesFor } from "../arena/sizing.ts";
import { archiveTrouble, isS3Refusal } from "../base/archive-remedies.ts";
import { isNames, storeKind } from "../base/hosts.ts";
import { storeCounts } from "../base/store-counts.ts";
import { RESTART_SIDECAR, showBytes, SILENT_FIX } from "../base/text.ts";
import type { StoreNode } from "../client/source.ts";
import { hasTwoPlaces, ONE_PLACE, OWN_VAULT } from "../cluster/targets.ts";
import type { SidecarStatus } from "../sidecar/status.ts";
import type { Seen } from "./inspect.ts";

export interface Finding {
  /** Identifier for scripts. */
  code: string;
  /** A problem makes the exit code 1; a note does not. */
  severity: "problem" | "note";
  /** One line with the defect, its place and the remedy. */
  text: string;
}

type Engine = SidecarStatus["engines"][number];

/** One check of the set-up; returns nothing when all is well. */
type Check = (seen: Seen) => Finding[];

/** Makes a check of one engine into a check of all. */
function ofEngines(check: (engine: Engine, name: string) => Finding[]): Check {
  return ({ sidecar }) =>
    (sidecar?.engines ?? []).flatMap((engine) =>
      check(
        engine,
        engine.model === "" ? `engine ${engine.id}` : `engine ${engine.id} (${engine.model})`,
      ),
    );
}

/** All checks, gravest first, as they are shown. To add one: a function here, and a test in findings.test.ts. */
const CHECKS: readonly Check[] = [
  ofEngines(arenaUnmapped),
  ofEngines(unnamed),
  ofEngines(ranksMissing),
  unresolved,
  outdated,
  unreachable,
  unreachedThere,
  vaultDown,
  bucketDown,
  classesLacking,
  gatewayDown,
  gatewayEngineDown,
  sidecarStale,
  copiesAlone,
  ofPlaces(draining),
  lanesUnreachable,
  ofPlaces(diskFailing),
  ofPlaces(archiveFailing),
  ofPlaces(storeNeverFree),
  ofPlaces(storeUnbounded),
  ofPlaces(storeUnseen),
  storeRefuses,
  ofEngines(arenaSmall),
  ofEngines(amxTiles),
];

export function findings(seen: Seen): Finding[] {
  const current = withoutLeft(seen);
  const all = [...unresolvedThere(seen), ...CHECKS.flatMap((check) => check(current))];
  return [...all.filter(isProblem), ...all.filter((finding) => !isProblem(finding))];
}

/** Leaves out vaults that have left their pool: sidecars look up their records for an hour, and they may be stopped. */
function withoutLeft(seen: Seen): Seen {
  const { sidecar, targets, config } = seen;
  if (sidecar === null) return seen;
  const stay = (all: readonly Vault[], list: readonly { text: string }[]): Vault[] => {
    const isFollowed = list.some(({ text }) => isNames(text));
    const isListed = ({ address }: Vault): boolean =>
      targets.some((target) => target.address === address) ||
      list.some(({ text }) => text === address);
    return all.filter((vault) => !isFollowed || vault.share > 0 || isListed(vault));
  };
  const { kvCold, ssmCold } = config.cluster;
  const { kv, ssm } = sidecar.vaults;
  const vaults = { kv: stay(kv, kvCold), ssm: stay(ssm, ssmCold) };
  return { ...seen, sidecar: { ...sidecar, vaults } };
}

export function isProblem({ severity }: Finding): boolean {
  return severity === "problem";
}

export function describeFindings(all: readonly Finding[]): string[] {
  return all.map(({ severity, text }) => `${severity.toUpperCase()}: ${text}`);
}

const problem = (code: string, text: string): Finding => {
  return { code, severity: "problem", text };
};

const note = (code: string, text: string): Finding => ({ code, severity: "note", text });

function arenaUnmapped({ arena }: Engine, engine: string): Finding[] {
  return (arena?.unmapped ?? []).map(({ rank, reason }) => {
    const what = `${engine} saves and restores nothing: worker ${rank} cannot map its shared memory`;
    return problem("arena_unmapped", `${what}: ${reason}`);
  });
}

/** An engine without a namespace, whose blocks could be mistaken for other blocks. A naming in progress is a note. */
function unnamed({ naming }: Engine, engine: string): Finding[] {
  if (naming.distrusted) {
    const what = `${engine} restores and saves nothing, because what is stored is not what it computes`;
    return [problem("quarantined", `${what}: ${naming.refused}`)];
  }
  if (naming.refused !== "") {
    return [problem("unnamed", `${engine} saves and restores nothing: ${naming.refused}`)];
  }
  if (naming.percent === 100) return [];
  const what = `${engine} is hashing its model's weights, and saves and restores nothing until it is done`;
  return [note("naming", `${what}; ${naming.percent} % done`)];
}

/** Ranks are missing while an engine starts, and always when they are on several hosts. */
function ranksMissing({ workers, world }: Engine, engine: string): Finding[] {
  if (world < 2 || workers === world) return [];
  const what = `${engine} saves and restores nothing before all its ranks are connected: ${workers} of ${world} are`;
  const why = "those on another host never will be, so run all ranks of an engine on one host";
  return [note("ranks_missing", `${what}; ${why}`)];
}

/** Names that stand for no vault now; a sidecar that runs goes on with the list that it knows. */
function unresolved({ names }: Seen): Finding[] {
  return (names ?? []).map((text) => problem("unresolved", text));
}

/** Lists of which the sidecar has seen no vault yet, for commands that resolve no names themselves. */
function unresolvedThere({ names, sidecar, config: { cluster } }: Seen): Finding[] {
  if (names !== undefined || sidecar === null) return [];
  const { kv, ssm } = sidecar.vaults;
  const lists = [
    ...(kv.length === 0 ? cluster.kvCold : []),
    ...(ssm.length === 0 ? cluster.ssmCold : []),
  ];
  const texts = new Set(lists.map(({ text }) => text).filter(isNames));
  const what = "no list of vaults has come, and `tierkv status` says why";
  return [...texts].map((text) =>
    problem("unresolved", `the sidecar knows no vault of ${text}: ${what}`),
  );
}

/** Begins an error about a name of which no list came. */
const OF_NONE = /^no vault is known of /;

/** Names without a list now, for which a sidecar and this command go on with the last one. */
function outdated({ outdated: all = [] }: Seen): Finding[] {
  return all.map((why) => {
    const what = "the vaults of the last list stay in use, and no new one is seen";
    return note("names_outdated", `${what}: ${why.replace(OF_NONE, "")}`);
  });
}

function gatewayDown({ fleetTrouble = "" }: Seen): Finding[] {
  return fleetTrouble === "" ? [] : [problem("gateway_down", fleetTrouble)];
}

/** An engine behind this user's gateway that gets no requests. */
function gatewayEngineDown({ fleet }: Seen): Finding[] {
  return (fleet?.engines ?? []).flatMap(({ engine, state, reason }) => {
    if (state !== "down") return [];
    const what = `engine ${engine} of the gateway gets no requests${reason === "" ? "" : `: ${reason}`}`;
    const fix = "start it, or take it out of [gateway] engines";
    return [problem("gateway_engine_down", `${what}; ${fix}`)];
  });
}

function unreachable({ config, targets, sidecar }: Seen): Finding[] {
  return targets.flatMap((seen) => {
    const { target, address, error, refused, isElsewhere } = seen;
    // Without its sidecar the own vault is down, too; the sidecar's finding is enough.
    if (error === null || (target === OWN_VAULT && sidecar === null)) return [];
    const unasked = storeUnasked(seen, stateAtSidecar(sidecar, address), config);
    if (unasked !== null) return [unasked];
    if (isElsewhere === true) {
      const what =
        "the sidecar uses this vault over another path, and no restore needs the one that is cut";
      return [note("path_cut", `${error}; ${what}`)];
    }
    return [
      refused ? problem("vault_refused", `refused: ${error}`) : problem("unreachable", error),
    ];
  });
}

/** A store that the sidecar may reach with credentials that this command lacks; `there`: its state at the sidecar. */
function storeUnasked(
  { address, error, refused }: Seen["targets"][number],
  there: string | null,
  { cluster }: Seen["config"],
): Finding | null {
  if (there === "up" && (refused || isOfCredentials(error ?? ""))) {
    if (storeKind(address) === "valkey" && cluster.storePassword !== null) {
      const why = "the sidecar still reaches it with the credentials that it started with";
      return problem("store_refused", `${error}; ${why}: correct [cluster] store_password`);
    }
    const why = "this command takes credentials from its own environment";
    return note("store_unasked", `the sidecar reaches ${address}, and ${why}: ${error}`);
  }
  if (there === "unknown" && refused && storeKind(address) === "s3") {
    const why = "this command was not given what it takes from its environment";
    const rest = "the sidecar has opened it with its own, and has not used it yet";
    return note("store_unasked", `${address} was not asked, because ${why}: ${error}; ${rest}`);
  }
  return null;
}

/** Words of a Valkey that was shown wrong credentials, or none. */
const WRONG_LOGIN = /WRONGPASS|NOAUTH/;

/** Whether a store's error is about who asked. */
const isOfCredentials = (error: string): boolean => WRONG_LOGIN.test(error) || isS3Refusal(error);

/** A store's state at the sidecar, whose environment may have other credentials; null: it is none, or the sidecar was denied. */
function stateAtSidecar(sidecar: Seen["sidecar"], address: string): string | null {
  if (storeKind(address) === null) return null;
  const places = Object.values(sidecar?.vaults ?? {}).flatMap((vaults) =>
    vaults.flatMap(({ behind, ...vault }) => (behind === undefined ? [vault] : [vault, behind])),
  );
  const states = places
    .filter((place) => place.address === address && !isDenied(place))
    .map(({ state }) => state);
  return states.includes("up") ? "up" : (states[0] ?? null);
}

/** A sidecar that has just begun uses a store until several calls have failed. */
function isDenied(place: object): boolean {
  const { counts }: { counts?: Vault["counts"] } = place;
  return (counts?.[`${REFUSED}denied`] ?? 0) > 0;
}

/** A place that answers this command and not the sidecar: the credentials, the certificate or the way there are another. */
function unreachedThere({ targets, sidecar }: Seen): Finding[] {
  const silent = new Map(
    vaultsOf(sidecar)
      .filter(({ state }) => state === "down" || state === "refused")
      .map(({ address, trouble }) => [address, trouble] as const),
  );
  return [...silent].flatMap(([address, trouble]) => {
    if (!targets.some((target) => target.address === address && target.error === null)) return [];
    const what = `${address} answers this command, and does not answer the sidecar`;
    const fix = storeKind(address) === null ? IF_IT_LASTS : KEEPS_CREDENTIALS;
    return [problem("unreachable", `${what}: ${trouble || "see its log"}; ${fix}`)];
  });
}

const KEEPS_CREDENTIALS =
  "a sidecar keeps the credentials of its start: start it again if they were changed since";
const IF_IT_LASTS = `the sidecar tries again by itself; if that lasts for more than a few seconds, ${RESTART_SIDECAR}`;

/** Returns the sidecar's vaults of both classes, named by class. */
function vaultsOf(
  sidecar: Seen["sidecar"],
): { name: string; address: string; state: string; trouble: string; lanes: string }[] {
  return Object.entries(sidecar?.vaults ?? {}).flatMap(([name, vaults]) =>
    // A running sidecar of an earlier release sends no `trouble`.
    vaults.map(({ address, state, trouble = "", lanes }) => {
      return { name, address, state, trouble, lanes };
    }),
  );
}

/** A vault's state as the sidecar sees it, for commands that did not ask the vault themselves. */
function vaultDown({ sidecar, targets, config }: Seen): Finding[] {
  return vaultsOf(sidecar).flatMap(({ name, ...vault }) => {
    if (targets.some(({ address }) => address === vault.address)) return [];
    const what = `${name} vault at ${vault.address}`;
    if (vault.state === "down") {
      const why = vault.trouble === "" ? `${what} does not answer` : vault.trouble;
      const fix = remedyFor(vault.address, why, config);
      const text = `${why}; it is not used until it answers again${fix === "" ? "" : `: ${fix}`}`;
      return [problem("unreachable", text)];
    }
    if (vault.state !== "refused") return [];
    const text = `${what} is not used: ${vault.trouble || "see the sidecar's log"}`;
    return [problem("vault_refused", text)];
  });
}

/** Words of VAULT_DEADLINE: the call began, so that a program is there. */
const LATE = /did not answer \w+ within/;

/** Returns what to do about a place that does not answer the sidecar; empty: `why` says it. */
function remedyFor(address: string, why: string, { cluster }: Seen["config"]): string {
  const listed = [...cluster.kvCold, ...cluster.ssmCold].map(({ text }) => text);
  const isOld = listed.length > 0 && listed.every((text) => HOST_AND_PORT.test(text));
  if (isOld && !listed.includes(address)) {
    return `the configuration no longer names it, and the sidecar runs with an older list: ${RESTART_SIDECAR}`;
  }
  if (why.includes("; ")) return "";
  if (LATE.test(why)) return `start its machine if that is off; else ${SILENT_FIX}`;
  const kind = storeKind(address);
  if (kind === "s3") return "check the network to it, and its own state";
  const start = kind === null ? "start `tierkv vault` there" : "start that server";
  return `${start}, or check the network to it`;
}

/** A vault in the lists of both classes that keeps one of them. */
function classesLacking({ targets }: Seen): Finding[] {
  return targets.flatMap(({ target, address, role }) => {
    // A store keeps records of both classes.
    if (target !== "cold" || storeKind(address) !== null) return [];
    if (role !== "kv_cold" && role !== "ssm_cold") return [];
    const [keeps, lacks] = role === "kv_cold" ? ["kv", "ssm"] : ["ssm", "kv"];
    const what = `[cluster] ${lacks}_cold names ${address}, and that vault keeps ${keeps} records only`;
    const fix = `take it out of ${lacks}_cold, or write role = "cold" there`;
    return [problem("vault_class", `${what}: ${fix}`)];
  });
}

/** A bucket behind a vault or a Valkey, as the sidecar sees it. */
function bucketDown({ sidecar, targets }: Seen): Finding[] {
  return Object.values(sidecar?.vaults ?? {}).flatMap((vaults) =>
    vaults.flatMap(({ behind }) => {
      const isTold = targets.some(({ address }) => address === behind?.address);
      if (behind?.state !== "down" || isTold) return [];
      const what = `the bucket ${behind.address} is not used: ${behind.trouble}`;
      return [problem("unreachable", `${what}; what only it holds is computed again`)];
    }),
  );
}

/** A sidecar that runs with another list of vaults than the configuration has now; lists behind names follow by themselves. */
function sidecarStale({ sidecar, config }: Seen): Finding[] {
  if (sidecar === null) return [];
  const { kvCold, ssmCold } = config.cluster;
  const keys = new Map<string, string[]>();
  for (const [name, list] of Object.entries({ kv: kvCold, ssm: ssmCold })) {
    const listed = list.map(({ text }) => text).filter((text) => HOST_AND_PORT.test(text));
    const used = vaultsOf(sidecar).filter((vault) => vault.name === name);
    // Without a list the sidecar has a vault of its own.
    if (listed.length === 0 || listed.length < list.length) continue;
    const missing = listed.filter((text) => !used.some(({ address }) => address === text));
    const left = used.filter(({ address }) => !listed.includes(address));
    const told = [
      ...missing.map((text) => `does not use ${text}, which the configuration names`),
      ...left.map(({ address }) => `still uses ${address}, which the configuration does not name`),
    ];
    // A vault is usually in both lists, and one line tells of it.
    for (const what of told) keys.set(what, [...(keys.get(what) ?? []), `${name}_cold`]);
  }
  return [...keys].map(([what, of]) => {
    const text = `the running sidecar ${what} ([cluster] ${of.join(", ")})`;
    return note("sidecar_stale", `${text}: ${RESTART_SIDECAR}`);
  });
}

/** An address of one vault: no name of a list, and no store or shared memory. */
const HOST_AND_PORT = /^(?:\[[^\]]+\]|[^:/]+):\d+$/;

/** Two copies, and one vault, as after another was lost and removed; of a pool that keeps a list the sidecar knows the vaults. */
function copiesAlone({ config: { cluster }, sidecar }: Seen): Finding[] {
  const counts = Object.values(sidecar?.vaults ?? {}).map(
    (vaults) => vaults.filter(({ tier, hasLeft }) => tier === "vault" && hasLeft !== true).length,
  );
  const isKnownAlone = cluster.redundancy !== "none" && Math.max(0, ...counts) === 1;
  return hasTwoPlaces(cluster) && !isKnownAlone ? [] : [note("copies_alone", ONE_PLACE)];
}

/** A vault or a store: as it answered this command, else as the sidecar sees it. */
interface Place {
  /** Role and address. */
  name: string;
  /** Role, or its class. */
  role: string;
  address: string;
  isDraining: boolean;
  isDiskFailing: boolean;
  archive: { failing: boolean; trouble: string; pendingBytes: number } | null;
  nodes: readonly StoreNode[];
}

/** Makes a check of one place into a check of all, for commands that ask vaults and for those that ask the sidecar alone. */
function ofPlaces(check: (place: Place, config: Seen["config"]) => Finding[]): Check {
  return (seen) => placesOf(seen).flatMap((place) => check(place, seen.config));
}

function placesOf({ targets, sidecar }: Seen): Place[] {
  const asked = targets.map(({ target, address, draining: isDraining, disk, nodes }) => ({
    name: `${target} at ${address}`,
    role: target,
    address,
    isDraining: isDraining === true,
    isDiskFailing: disk?.failing === true,
    archive: disk?.archive ?? null,
    nodes: nodes ?? [],
  }));
  const places = new Map<string, Place>(asked.map((place) => [place.address, place]));
  for (const [name, vaults] of Object.entries(sidecar?.vaults ?? {})) {
    // A vault of both classes is in both lists.
    const others = vaults.filter(({ address }) => !places.has(address));
    for (const vault of others) places.set(vault.address, seenBySidecar(`${name} vault`, vault));
  }
  return [...places.values()];
}

type Vault = SidecarStatus["vaults"]["kv"][number];

function seenBySidecar(role: string, { address, isDraining, seen }: Vault): Place {
  const name = `${role} at ${address}`;
  const disk = seen?.disk ?? null;
  const isDiskFailing = disk?.failing === true;
  const [archive, nodes] = [disk?.archive ?? null, seen?.nodes ?? []];
  return { name, role, address, isDraining, isDiskFailing, archive, nodes };
}

function draining({ name, address, isDraining }: Place, { cluster }: Seen["config"]): Finding[] {
  if (!isDraining) return [];
  const what = `${name} is being drained and takes no new records`;
  const lists = [...cluster.kvCold, ...cluster.ssmCold];
  const isNamed = lists.some((one) => one.text === address || isNames(one.text));
  const end = `\`tierkv vaults drain ${address} --end\` ends that`;
  const afterRemoval =
    "the list of vaults on this machine no longer names it: start the sidecar again, then stop that vault";
  // A vault's own machine has no list.
  const next = isNamed || lists.length === 0 ? end : afterRemoval;
  return [note("draining", `${what}; ${next}`)];
}

function lanesUnreachable({ sidecar, targets }: Seen): Finding[] {
  const own = targets.flatMap(({ target, address, laneTrouble }) => {
    if (laneTrouble === null) return [];
    const what = `${target} at ${address}: records cannot travel on its lanes`;
    return [problem("lanes_unreachable", `${what}: ${laneTrouble}`)];
  });
  const seen = vaultsOf(sidecar).flatMap(({ name, address, state, lanes }) => {
    const isTold = targets.some(
      (target) => target.address === address && target.laneTrouble !== null,
    );
    if (isTold || state !== "up" || lanes !== "broken") return [];
    const what = `${name} vault at ${address} answers the sidecar, but its lanes are down, so that no record gets there`;
    return [problem("lanes_unreachable", `${what}: see the sidecar's log for the reason`)];
  });
  return [...own, ...seen];
}

function diskFailing({ name, isDiskFailing }: Place): Finding[] {
  if (!isDiskFailing) return [];
  const what = `${name}: its disk takes no more records; records in memory are still served`;
  return [problem("disk_failing", `${what}; see the vault's log for the error and the path`)];
}

function archiveFailing({ name, archive }: Place): Finding[] {
  if (archive?.failing !== true) return [];
  const what = `${name}: its archive fails, so that a lost disk loses what is not there (${showBytes(archive.pendingBytes)} wait)`;
  return [problem("archive_failing", `${what}: ${archiveTrouble(archive.trouble)}`)];
}

/** A node that is full refuses saves for ever, because it evicts nothing and nothing expires. */
function storeNeverFree(place: Place, { cluster: { storeTtlS } }: Seen["config"]): Finding[] {
  return ofNodes(place, ({ policy, maxBytes, keys, expiring }, node) => {
    const mayEvict =
      policy.startsWith("allkeys-") || (policy.startsWith("volatile-") && expiring > 0);
    if (maxBytes === 0 || policy === "" || mayEvict || storeTtlS !== null) return [];
    const what = `${node} evicts nothing (maxmemory-policy ${policy}), and of ${keys} keys ${expiring} expire, so that it refuses saves once it is full`;
    const fix = "set maxmemory-policy allkeys-lfu there, or [cluster] store_ttl_s here";
    return [problem("store_never_free", `${what}: ${fix}`)];
  });
}

/** A node without a limit takes memory until the system ends it. */
function storeUnbounded(place: Place): Finding[] {
  return ofNodes(place, ({ policy, maxBytes, usedBytes }, node) => {
    if (maxBytes > 0 || policy === "") return [];
    const what = `${node} has no limit of memory, and uses ${showBytes(usedBytes)}`;
    const fix = "set maxmemory there, and maxmemory-policy allkeys-lfu";
    return [problem("store_unbounded", `${what}: ${fix}`)];
  });
}

function storeUnseen(place: Place): Finding[] {
  return ofNodes(place, ({ trouble }, node) => {
    if (trouble === "") return [];
    if (trouble.includes("NOPERM")) {
      const what = `${node} does not tell its memory and policy: ${trouble}`;
      return [note("store_unseen", `${what}; allow +info`)];
    }
    const what = `${node} does not answer: ${trouble}; its blocks are misses until it or its replica serves`;
    return [note("store_node_down", `${what}: start it`)];
  });
}

/** Refusals of a store since the sidecar began. */
function storeRefuses({ sidecar }: Seen): Finding[] {
  return Object.entries(sidecar?.vaults ?? {}).flatMap(([name, vaults]) =>
    storeCounts(vaults).flatMap(({ address, counts }) => {
      const said = Object.entries(counts ?? {}).filter(
        ([what, count]) => what.startsWith(REFUSED) && count > 0,
      );
      if (said.length === 0) return [];
      const list = said.map(([what, count]) => {
        const word = what.slice(REFUSED.length);
        const fix = REFUSAL_FIXES[word];
        return `${word} ${count} times${fix === undefined ? "" : ` (${fix})`}`;
      });
      const what = `the ${name} store at ${address} refused since the sidecar started`;
      return [note("store_refuses", `${what}: ${list.join(", ")}`)];
    }),
  );
}

const REFUSED = "refused_";
/** Remedies for refusals, by the store's word. */
const REFUSAL_FIXES: Readonly<Record<string, string>> = {
  OOM: "set maxmemory-policy allkeys-lfu there, or give it more memory",
  NOPERM: "its user lacks a right: `tierkv doctor` names it",
  NOAUTH: "correct the user and the password, and start the sidecar again",
  WRONGPASS: "correct the user and the password, and start the sidecar again",
  denied: "correct its rights or the sidecar's credentials",
  expired: "renew the sidecar's credentials",
  clock_skew: "set this machine's clock",
};

function ofNodes(
  { role, nodes }: Place,
  check: (node: StoreNode, name: string) => Finding[],
): Finding[] {
  return nodes.flatMap((node) => check(node, `${role}: Valkey at ${node.address}`));
}

/** An arena too small for the longest prompt, of which only the beginning is restored. */
function arenaSmall({ forecast, arena }: Engine, engine: string): Finding[] {
  const longest = forecast.at(-1);
  if (longest === undefined || arena === null || arena.longestTokens >= longest.tokens) return [];
  const { slotBytes, slotCount, saveSlots, longestTokens } = arena;
  const has = showBytes((slotCount - saveSlots) * slotBytes);
  const takes = `${longest.tokens} tokens take ${showBytes(longest.slots * slotBytes)} of shared memory, and restores have ${has}`;
  const what = `${engine} restores only the first ${longestTokens} tokens of longer prompts`;
  const fix = `set [sidecar] arena_bytes = ${arenaBytesFor(longest.slots, slotBytes)}, where twice that is free`;
  return [note("arena_small", `${what}: ${takes}; ${fix}`)];
}

/** A defect of vLLM; a note only, because the shim avoids it where Linux permits. */
function amxTiles({ hasAmxTiles }: Engine, engine: string): Finding[] {
  if (!hasAmxTiles) return [];
  const what = `${engine} computes on a CPU with AMX, where vLLM may die of SIGILL at a small first step`;
  const fix =
    "the connector avoids it by leaving 64 tokens of each prompt to compute until a step was as large, and this note ends then; if vLLM dies all the same, send it a prompt of 64 tokens or more first";
  return [note("amx", `${what}: ${fix}`)];
}
