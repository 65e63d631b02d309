// Owns the view of `tierkv top`: the status of a sidecar and a gateway as lines that fit a terminal.
import { printable } from "../../base/printable.ts";
import {
  NONE,
  orNone,
  showBytes,
  showMs,
  showRate,
  showRecords,
  showShare,
  table,
} from "../../base/text.ts";
import { showSource } from "../../control/explanation.ts";
import { describeFleet } from "../../control/fleet.ts";
import { isProblem } from "../../diagnosis/findings.ts";
import type { Finding } from "../../diagnosis/findings.ts";
import type { ShownFleet } from "../../gateway/control.ts";
import { reasonText } from "../../sidecar/socket/reasons.ts";
import type { SidecarStatus, VaultStatus } from "../../sidecar/status.ts";
import type { Account } from "../../sidecar/trace/decisions.ts";
import type { Look } from "./terminal.ts";

export interface Picture {
  /** null: only a gateway runs here. */
  status: SidecarStatus | null;
  /** null: no gateway runs. */
  fleet: ShownFleet | null;
  /** Previous status, for rates; null: there is none. */
  before: SidecarStatus | null;
  findings: readonly Finding[];
}

const BAR_CELLS = 10;
const MISSES_SHOWN = 4;

/** Bold, faint, and blue against yellow, because red and green are hard to tell apart. Words say the same. */
const STYLES = { head: "1", faint: "2", good: "34", bad: "1;33" } as const;
type Style = keyof typeof STYLES;
type Paint = (style: Style, text: string) => string;

/** Returns at most `rows` lines of at most `columns` characters. */
export function describeTop(picture: Picture, { columns, rows, isColoured }: Look): string[] {
  const { status, fleet, before, findings } = picture;
  const paint: Paint = (style, text) =>
    isColoured && text !== "" ? `\u001B[${STYLES[style]}m${text}\u001B[0m` : text;
  // Cut before painting, because escape sequences take no columns.
  const cut = (line: string): string => fit(printable(line), columns);
  const plain = (lines: readonly string[]): string[] => lines.map(cut);
  const headed = ([head = "", ...rest]: readonly string[]): string[] => [
    paint("head", cut(head)),
    ...plain(rest),
  ];
  const lines = [
    paint("head", cut(status === null ? "tierKV: no sidecar runs here" : describeSelf(status))),
    ...findings.flatMap((finding) =>
      wrap(printable(`${finding.severity.toUpperCase()}: ${finding.text}`), columns).map((line) =>
        isProblem(finding) ? paint("bad", line) : line,
      ),
    ),
    ...(fleet === null ? [] : ["", ...headed(describeFleet(fleet))]),
  ];
  if (status !== null) {
    lines.push("", ...headed(describeEngines(status)));
    lines.push("", ...headed(describeVaults(status)));
    lines.push("", ...plain(describeFlow(status, before)));
    lines.push("", ...headed(["saved by restores", ...describeLedger(status)]));
    lines.push("", ...headed(describeMisses(status)));
    lines.push("", ...headed(describeRestores(status.restores)));
  }
  return rows === null ? lines : lines.slice(0, rows);
}

function describeSelf({ version, uptimeMs, at, socket }: SidecarStatus): string {
  const time = new Date(at).toTimeString().slice(0, 8);
  return `tierKV ${version}  up ${showMs(uptimeMs)}  ${time}  ${socket}`;
}

type Arena = NonNullable<SidecarStatus["engines"][number]["arena"]>;

function describeEngines({ engines }: SidecarStatus): string[] {
  if (engines.length === 0) return ["engines", "none is connected"];
  const rows = engines.map((engine) => {
    const { model, id, kind, naming, isRestoring, arena, plans, workers, world } = engine;
    const state = isRestoring
      ? "restores"
      : naming.percent < 100
        ? `hashing weights: ${naming.percent} %`
        : "starting";
    const memory = arena === null ? [NONE, NONE, NONE] : memoryCells(arena);
    return [id, kind, model, state, `${workers}/${world}`, ...memory, String(plans)];
  });
  return table([
    ["engine", "kind", "model", "state", "ranks", "arena", "used", "of", "plans"],
    ...rows,
  ]);
}

/** Counts slots that were never touched as free. */
function memoryCells({ slotCount, touchedSlots, freeSlots, slotBytes, bytes }: Arena): string[] {
  const used = touchedSlots - freeSlots;
  return [bar(used, slotCount), showBytes(used * slotBytes), showBytes(bytes)];
}

function describeVaults({ vaults }: SidecarStatus): string[] {
  const isPool = Object.values(vaults).some((all) => all.filter(isOfPool).length > 1);
  const rows = rowsByVault(vaults).flatMap(([name, vault]) => [
    vaultRow(name, vault, isPool),
    ...behindRow(vault, isPool),
  ]);
  if (rows.length === 0) return ["vaults", "none is known"];
  const pooled = isPool ? ["owns", "gaps", "misplaced"] : [];
  const head = ["vault", "state", ...pooled, "rtt", "memory", "used", "of", "records"];
  return table([[...head, "hit rate", "lanes", "out", "in", "address"], ...rows]);
}

/** Lists each vault once: one that keeps both classes has the same contents in both lists. */
function rowsByVault(vaults: SidecarStatus["vaults"]): [name: string, vault: VaultStatus][] {
  const of = (all: readonly VaultStatus[], address: string): VaultStatus | undefined =>
    all.find((vault) => vault.address === address);
  const isOne = (one: VaultStatus, other: VaultStatus | undefined): boolean =>
    other !== undefined && one.share === other.share && one.state === other.state;
  const both = vaults.kv.filter((one) => isOne(one, of(vaults.ssm, one.address)));
  const kv = vaults.kv.map((one): [string, VaultStatus] => [
    both.includes(one) ? "kv, ssm" : "kv",
    one,
  ]);
  const ssm = vaults.ssm.filter(({ address }) => of(both, address) === undefined);
  return [...kv, ...ssm.map((one): [string, VaultStatus] => ["ssm", one])];
}

const isOfPool = ({ tier }: VaultStatus): boolean => tier !== "shared";

/** Cells as in `tierkv vaults ls`: share of runs owned, blocks that miss an earlier one, blocks of another owner. */
function pooledCells(vault: VaultStatus): string[] {
  if (!isOfPool(vault)) return [NONE, NONE, NONE];
  const owns = vault.hasLeft ? "left" : vault.isDraining ? "drains" : showShare(vault.share);
  return [owns, String(vault.holes), String(vault.moved)];
}

function vaultRow(name: string, vault: VaultStatus, isPool: boolean): string[] {
  const { address, state, lanes, seen } = vault;
  const isUp = state === "up" || state === "unknown";
  // A vault that has left its pool may be stopped.
  const called = isUp ? state : vault.hasLeft ? NONE : state.toUpperCase();
  const shown = [name, called, ...(isPool ? pooledCells(vault) : [])];
  if (seen === null) return [...shown, ...Array<string>(9).fill(NONE), address];
  const { lookupKeys, lookupHits, usedBytes, maxBytes } = seen;
  return [
    ...shown,
    showMs(seen.rttMs),
    bar(usedBytes, maxBytes),
    showBytes(usedBytes),
    showBytes(maxBytes),
    showRecords(seen.records, seen.disk?.records ?? null),
    lookupKeys === 0 ? NONE : showShare(lookupHits / lookupKeys),
    lanes === "up" ? String(seen.lanes) : lanes,
    showRate(seen.outBytesPerS),
    showRate(seen.inBytesPerS),
    address,
  ];
}

/** The bucket behind a vault or a Valkey. */
function behindRow({ behind }: VaultStatus, isPool: boolean): string[][] {
  if (behind === undefined) return [];
  const { state, address } = behind;
  const isUp = state === "up" || state === "unknown";
  const rest = Array<string>(isPool ? 12 : 9).fill(NONE);
  return [["behind", isUp ? state : state.toUpperCase(), ...rest, address]];
}

function describeFlow(status: SidecarStatus, before: SidecarStatus | null): string[] {
  const { counters, saves } = status;
  const count = (name: string): number => counters[name] ?? 0;
  const rate = (name: string): string => {
    if (before === null || status.at <= before.at) return "";
    const moved = count(name) - (before.counters[name] ?? 0);
    return `, ${showBytes((Math.max(0, moved) / (status.at - before.at)) * 1000)}/s now`;
  };
  const asked = count("lookup_keys");
  const hits = asked === 0 ? NONE : showShare(count("lookup_hits") / asked);
  const waiting =
    saves.queuedBlocks === 0 ? "" : `, ${showBytes(saves.queuedBytes)} wait to be saved`;
  return [
    `fetched   ${showBytes(count("bytes_fetched"))}${rate("bytes_fetched")}`,
    `saved     ${showBytes(count("bytes_sent"))}${rate("bytes_sent")}${waiting}`,
    `hit rate  ${hits} of ${asked} blocks that were looked up`,
  ];
}

function describeLedger({ ledger }: SidecarStatus): string[] {
  const { restores, tokens, prefillS, restoreS, savedS, unpricedTokens, joules } = ledger;
  if (restores === 0) return ["nothing has been restored yet"];
  const seconds = (value: number): string => showSigned(value * 1000);
  const energy = joules === null ? "" : `, ${showWattHours(joules / 3600)} of energy`;
  const unpriced =
    unpricedTokens === 0
      ? []
      : [`${unpricedTokens} of the tokens came before their cost was known`];
  return [
    `${tokens} tokens in ${restores} ${restores === 1 ? "restore" : "restores"}${energy}`,
    ...(unpricedTokens === tokens
      ? []
      : [
          `${seconds(savedS)} less waiting: computing takes ${seconds(prefillS)}, restoring took ${seconds(restoreS)}`,
        ]),
    ...unpriced,
  ];
}

const showSigned = (ms: number): string => (ms < 0 ? `-${showMs(-ms)}` : showMs(ms));

function showWattHours(wattHours: number): string {
  return wattHours >= 1000
    ? `${(wattHours / 1000).toFixed(2)} kWh`
    : `${wattHours.toFixed(wattHours >= 10 ? 0 : 2)} Wh`;
}

/** Returns the causes of misses, the most frequent first. */
export function causes(counters: Readonly<Record<string, number>>): [string, number][] {
  return Object.entries(counters)
    .filter(([name, count]) => name.startsWith("miss_") && count > 0)
    .map(([name, count]): [string, number] => [name.slice("miss_".length), count])
    .sort(([, a], [, b]) => b - a);
}

function describeMisses({ counters }: SidecarStatus): string[] {
  const all = causes(counters);
  const unasked = notLookedUp(counters);
  if (all.length === 0) return ["why prompts missed", "none has", ...unasked];
  const shown = all.slice(0, MISSES_SHOWN).map(([reason, count]) => [String(count), reason]);
  const rows = table(shown).map((row, at) => `${row}: ${reasonText(all[at]?.[0] ?? "")}`);
  return ["why prompts missed (`tierkv explain` names each)", ...rows, ...unasked];
}

/** Prompts that engines never asked for, by the shim's counters. */
const UNASKED: Readonly<Record<string, string>> = {
  shim_prompts_below_block: "not longer than a block",
  shim_prompts_below_gain: "held by the engine's own cache, or computed sooner than looked up",
  shim_prompts_not_reading:
    "of requests that read no prefix cache, or ask for logprobs of the prompt",
  shim_requests_untouched: "not cacheable",
};

function notLookedUp(counters: Readonly<Record<string, number>>): string[] {
  const parts = Object.entries(UNASKED).flatMap(([name, what]) => {
    const count = counters[name] ?? 0;
    return count === 0 ? [] : [`${count} ${what}`];
  });
  return parts.length === 0 ? [] : [`prompts not looked up: ${parts.join(", ")}`];
}

function describeRestores(restores: readonly Account[]): string[] {
  if (restores.length === 0) return ["latest restores", "none yet"];
  // 0 predicts nothing: nothing was measured yet, or what lies here needs no fetch.
  const pair = (actual: number | null, predicted: number | null): string =>
    `${orNone(actual, showMs)} (${orNone(predicted || null, showMs)})`;
  const rows = restores
    .toReversed()
    .map(({ at, req, loadedTokens, choice, actual, ...rest }) => [
      new Date(at).toTimeString().slice(0, 8),
      req,
      String(loadedTokens ?? 0),
      showSource(choice),
      pair(actual.fetch, rest.predicted.fetch),
      pair(actual.load, rest.predicted.load),
      orNone(rest.saved, showSigned),
    ]);
  const head = ["latest restores", "request", "tokens", "from", "fetch (predicted)"];
  return table([[...head, "load (predicted)", "saved"], ...rows]);
}

function bar(value: number, most: number): string {
  const share = most <= 0 ? 0 : Math.min(1, Math.max(0, value / most));
  const full = Math.round(share * BAR_CELLS);
  return `${"#".repeat(full)}${".".repeat(BAR_CELLS - full)} ${Math.round(share * 100)} %`;
}

const fit = (line: string, columns: number): string =>
  line.length <= columns ? line : `${line.slice(0, Math.max(0, columns - 1))}>`;

/** Wraps a finding, because findings are never cut. */
function wrap(text: string, columns: number): string[] {
  const lines: string[] = [];
  let line = "";
  for (const word of text.split(" ")) {
    if (line !== "" && line.length + 1 + word.length > columns) {
      lines.push(line);
      line = `  ${word}`;
    } else line = line === "" ? word : `${line} ${word}`;
  }
  return [...lines, line];
}
