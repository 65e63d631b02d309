// Owns `tierkv status`: asks the sidecar and every vault, and prints the state of each.
import { storeKind } from "../../base/hosts.ts";
import {
  NONE,
  orNone,
  showBytes,
  showMs,
  showRate,
  showRecords,
  showShare,
  tableWithin,
} from "../../base/text.ts";
import { showCodec, showFidelity, showForm } from "../../control/form.ts";
import { describeFindings, findings, isProblem } from "../../diagnosis/findings.ts";
import type { Pooled, TargetStatus, Travel } from "../../diagnosis/inspect.ts";
import type { ArchiveStats, DiskStats } from "../../wire/messages.ts";
import type { Call, Outcome } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";
import { showTop } from "./top.ts";
import type { TopOptions } from "./top.ts";

interface StatusOptions extends TopOptions {
  watch?: true;
}

export function addStatus(program: Command): void {
  program
    .command("status")
    .summary("show the state of the sidecar and the vaults")
    .description(
      "Asks the sidecar (on the engine's machine) and every configured vault. Shows reachability, round trip, version,\n" +
        "role, memory, records, hit rate, evictions, lanes, rates and disk use. Problems come first. Exit code 1 if there\n" +
        "is a problem.",
    )
    .option("--watch", "repeat until stopped, on a terminal, like `tierkv top`")
    .example("tierkv status --json")
    .does(showStatus);
}

async function showStatus(call: Call<StatusOptions>): Promise<Outcome> {
  if (call.options.watch === true) return await showTop(call);
  const config = call.loadConfig();
  const { look } = await import("../shell/looking.ts");
  const seen = await look(config, call.io);
  const { targets } = seen;
  const found = findings(seen);
  const ok = !found.some(isProblem);
  const lines = [...describeFindings(found), ...describe(targets, call.io.columns)];
  call.print({ ok, config: config.path, findings: found, targets }, lines);
  return ok;
}

type Traffic = NonNullable<TargetStatus["traffic"]>;

const HEAD = [
  "target",
  "address",
  "state",
  "rtt p50",
  "p99",
  "version",
  "role",
  "memory",
  "records",
  "hit rate",
  "evicted",
];

function describe(targets: readonly TargetStatus[], columns: number): string[] {
  const remarks = targets.flatMap((status) => {
    const { target, address } = status;
    const isOne = targets.filter((other) => other.target === target).length === 1;
    return remark(status, isOne ? target : `${target} ${address}`);
  });
  return [...tableWithin(columns, [HEAD, ...targets.map(row)]), ...remarks];
}

/** Counts engines, and names the software of those that are not vLLM. */
function describeEngines(engines: number, kinds: readonly string[]): string {
  const others = [...new Set(kinds)].filter((kind) => kind !== "vllm");
  const which = others.length === 0 ? "" : ` (${others.join(", ")})`;
  return `${engines} ${engines === 1 ? "engine" : "engines"}${which}`;
}

/** Returns lines below the table: a vault's traffic, sessions and disk, or a sidecar's work. */
function remark(status: TargetStatus, name: string): string[] {
  const { counters, disk, traffic } = status;
  if (traffic !== null) {
    const lines = [describeTraffic(traffic), ...describeSessions(status)].map(
      (text) => `${name}: ${text}`,
    );
    if (disk === null) return lines;
    return [...lines, `${name}: ${describeDisk(disk, counters ?? {})}`];
  }
  return counters === null ? [] : describeWork(status, counters);
}

/** Exported for its test: names what was stored again from shared memory, which no request has caused. */
export function describeAgain(count: (counter: string) => number): string {
  const bytes = count("copies_sent_bytes");
  return bytes === 0 ? "" : `, ${showBytes(bytes)} stored again that a vault had lost`;
}

/** Describes a sidecar's engines, blocks and forms; nothing of another target. */
function describeWork(
  { engines, kinds, isSaving, kvCodec, fidelity, forms, travel, pools }: TargetStatus,
  counters: NonNullable<TargetStatus["counters"]>,
): string[] {
  if (engines === null) return [];
  const count = (counter: string): number => counters[counter] ?? 0;
  const restored =
    count("blocks_restored_vault") +
    count("blocks_restored_shared") +
    count("blocks_restored_local");
  const sizes = `${showBytes(count("bytes_saved"))}, stored as ${showBytes(count("bytes_sent"))}`;
  const more = isSaving === true ? ", more are being saved" : "";
  // The codec may have changed since the first ones; where engines are connected, a line of each says theirs.
  const next = (fidelity ?? []).length > 0 ? "" : `, new ones go ${showCodec(kvCodec ?? "raw")}`;
  const saved = `${count("blocks_saved")} blocks saved (${sizes})${describeAgain(count)}${next}${more}`;
  const back = `${restored} restored (${showBytes(count("bytes_restored"))})`;
  return [
    `sidecar: ${describeEngines(engines, kinds ?? [])} connected, ${saved}, ${back}`,
    ...(travel === null ? [] : [`sidecar: ${describeTravel(travel)}`]),
    ...(pools ?? []).map((one) => `sidecar: ${describePooled(one)}`),
    ...(fidelity ?? [])
      // An engine that has just connected has not named its model yet.
      .filter(({ model }) => model !== "")
      .map(({ model, ...of }) => `sidecar: blocks of ${model} are ${showFidelity(of)}`),
    ...(forms ?? [])
      .filter(({ address }) => takesBlocks(address, pools ?? []))
      .map(({ address, form }) => `sidecar: blocks go to ${address} as ${showForm(form)}`),
  ];
}

/** Exported for its test. Whether a vault owns blocks; one that left its pool, or drains, owns none. */
export function takesBlocks(
  address: string,
  pools: readonly Pick<Pooled, "address" | "share">[],
): boolean {
  const shares = pools.filter((one) => one.address === address).map(({ share }) => share);
  return shares.length === 0 || shares.some((share) => share > 0);
}

function describeSessions({ sessions, counters }: TargetStatus): string[] {
  if (sessions === null || sessions.count === 0) return [];
  const refused = counters?.["keeps_refused"] ?? 0;
  const over = refused === 0 ? "" : `, ${refused} records were over [vault] kept_percent`;
  const count = `${sessions.count} ${sessions.count === 1 ? "session" : "sessions"}`;
  return [`${count}, ${showBytes(sessions.keptBytes)} kept${over}`];
}

function describeTraffic({ lanes, outBytesPerS, inBytesPerS }: Traffic): string {
  const rates = `${showRate(outBytesPerS)} out, ${showRate(inBytesPerS)} in`;
  return `${lanes} ${lanes === 1 ? "lane" : "lanes"} open, ${rates} over the last ten seconds`;
}

function describePooled({ class: name, address, share, holes, moved }: Pooled): string {
  const notes = [
    ...(holes === 0
      ? []
      : [
          `since the sidecar's start ${holes} blocks were missed there, although later ones were held`,
        ]),
    ...(moved === 0 ? [] : [`${moved} blocks were found there that another vault owned`]),
  ];
  const owns = share === 0 ? "no blocks: it has left the pool, or drains" : showShare(share);
  return [`${name} vault ${address} owns ${owns}`, ...notes].join("; ");
}

function stateOf({ reachable, refused, isElsewhere }: TargetStatus): string {
  if (reachable) return "up";
  if (isElsewhere === true) return "cut here";
  return refused ? "refused" : "DOWN";
}

/** Exported for its test. */
export function describeTravel({ lanes, cut, restoreBytesPerS, saveBytesPerS }: Travel): string {
  const ways = Object.entries(lanes).map(([name, state]) => `${name} ${LANES[state] ?? state}`);
  const rate = (name: string, value: number | null): string[] =>
    value === null ? [] : [`${name} at ${showRate(value)}`];
  const rates = [...rate("restored", restoreBytesPerS), ...rate("saved", saveBytesPerS)];
  const moved =
    rates.length === 0
      ? "nothing has travelled yet"
      : `since its start ${rates.join(", ")}, while records travelled`;
  const lost = cut.length === 0 ? "" : `; no connection over ${cut.join(", ")}`;
  return `lanes: ${ways.length === 0 ? "no vault" : ways.join(", ")}${lost}; ${moved}`;
}

/** States of lanes in words; a store that others run and shared memory have their tier in place of a state. */
const LANES: Readonly<Record<string, string>> = {
  // Of a vault that hangs, or whose link is cut, for as long as nothing fails on them.
  up: "open",
  none: "not open yet",
  vault: "not used (a store)",
  shared: "not used (shared memory)",
};

/** Describes the disk tier; the durable records exclude those waiting, or written and not synced. */
function describeDisk(disk: DiskStats, counters: Readonly<Record<string, number>>): string {
  const { disk_alarms: alarms = 0, quarantined = 0 } = counters;
  const { records, durableRecords, queuedRecords } = disk;
  const used = `${showBytes(disk.usedBytes)} of ${showBytes(disk.maxBytes)} on disk`;
  const durable = `${durableRecords} durable (${showBytes(disk.durableBytes)})`;
  const parts = [used, `${records} records`, durable, `${queuedRecords} waiting`];
  if (disk.recovering) parts.push("reading what the run before left");
  if (disk.failing) parts.push("WRITES FAIL, memory serves on");
  if (alarms > 0) parts.push(`${alarms} failed operations`);
  if (quarantined > 0) parts.push(`${quarantined} damaged records were dropped: see its log`);
  if (disk.archive) parts.push(describeArchive(disk.archive));
  return `${parts.join(", ")}; durability ${disk.durability}`;
}

function describeArchive({ usedBytes, pendingBytes, failing, trouble }: ArchiveStats): string {
  const state = failing ? `, FAILING: ${trouble}` : "";
  return `${showBytes(usedBytes)} in the archive, ${showBytes(pendingBytes)} of closed segments to go there${state}`;
}

/** Returns the most that a target may use: a sidecar's ceiling is of each engine. */
function mostOf({ address, engines }: TargetStatus, maxBytes: number): string {
  if (storeKind(address) !== null && maxBytes === 0) return ", no limit";
  if (engines === 0) return "";
  return ` of ${showBytes(maxBytes * (engines ?? 1))}`;
}

/** Exported for its test. */
export function row(target: TargetStatus): string[] {
  const { usedBytes, maxBytes } = target;
  // A bucket says nothing of its size.
  const isUnknown = usedBytes === null || maxBytes === null || storeKind(target.address) === "s3";
  const isStore = storeKind(target.address) !== null;
  const memory = isUnknown ? NONE : `${showBytes(usedBytes)}${mostOf(target, maxBytes)}`;
  return [
    target.target,
    target.address,
    stateOf(target),
    orNone(target.rttMsP50, showMs),
    orNone(target.rttMsP99, showMs),
    // A store that others run has no release of tierKV.
    orNone(isStore ? null : target.version, String),
    orNone(target.role, String),
    memory,
    showRecords(target.records, target.disk?.records ?? null),
    orNone(target.hitRate, showShare),
    orNone(target.evicted, String),
  ];
}
