// Owns the text of a sidecar's decision about one request: what it found, chose, restored, and why.
import { orNone, showMs } from "../base/text.ts";
import type { Explained } from "../sidecar/sidecar.ts";
import type { DoneReason } from "../sidecar/socket/messages.ts";
import { reasonOf, reasonText } from "../sidecar/socket/reasons.ts";
import { describeDivergence } from "./divergence.ts";
import type { DivergenceText } from "./divergence.ts";
import { showFidelity, showForm } from "./form.ts";

/** Describes one request in a few lines. `text`: of its divergence; null: only places are known. */
export function describe(account: Explained, text: DivergenceText | null = null): string[] {
  const { startTokens, askedTokens } = account;
  const reason = reasonOf(account);
  const plan = account.plan === 0 ? "" : `plan ${account.plan}, `;
  const head = `${account.req} (${plan}${new Date(account.at).toISOString()})`;
  const differs = differences(account, text);
  if (account.choice === "unasked") {
    const held = `${askedTokens} tokens, the engine held ${startTokens}`;
    return [head, `  not looked up: ${reasonText(reason)} (${held})`, ...differs];
  }
  const lines = rowsOf(account, reason).flatMap(([label, isShown, line]) =>
    isShown ? [labelled(label, line)] : [],
  );
  return [head, `  ${outcome(account, reason)}`, ...lines, ...differs];
}

/** Returns the choice and its reason; where a load brought less than was chosen, how much it brought and why no more. */
function outcome(account: Explained, reason: string): string {
  const { choice, startTokens, chosenTokens, loadedTokens, end } = account;
  // Computing begins behind the chosen tokens, so a place here would read as its end.
  if (chosenTokens === null || choice === "recomputed") return `${choice}: ${reasonText(reason)}`;
  const loaded = loadedTokens ?? 0;
  const isWhole = end === null || end === "complete" || startTokens + loaded >= chosenTokens;
  if (choice !== "loaded" || isWhole)
    return `${choice} up to ${chosenTokens}: ${reasonText(reason)}`;
  return `to be loaded up to ${chosenTokens}, loaded ${loaded} tokens: ${howEnded(account)}`;
}

const labelled = (label: string, text: string): string => `  ${`${label}:`.padEnd(8)} ${text}`;

function differences({ divergence }: Explained, text: DivergenceText | null): string[] {
  if (divergence === null) return [];
  return describeDivergence(divergence, text).map(([label, line]) => labelled(label, line));
}

type Row = [label: string, isShown: boolean, text: string];

function rowsOf(account: Explained, reason: string): Row[] {
  const { predicted, actual, ahead, beyondTokens, longerTokens, heldTokens, roomTokens } = account;
  const { gap, miss, block, receipt, saved, forms = [], fidelity, windows } = account;
  const missing = miss === null || miss === reason ? "" : `; ${reasonText(miss)}`;
  const asked = `${account.askedTokens} tokens, the engine held ${account.startTokens}`;
  const loading = `${shown(actual.load)}, ${foretold(predicted.load)}`;
  const isLoaded = actual.load !== null || (account.loadedTokens ?? 0) > 0;
  const isForetold = predicted.compute !== null || predicted.recompute !== null;
  return [
    ["asked", true, `${asked}; look-up ${shown(actual.lookup)}`],
    ["cut", beyondTokens > 0, `${beyondTokens} more tokens are beyond what one look-up takes`],
    ["queue", ahead > 0, `${ahead} requests came before it`],
    ["blocks", longerTokens > 0, `cut from another engine's blocks of ${longerTokens} tokens`],
    [
      "saves",
      account.returns,
      "a prompt that has come back, or of a session: saved before other new prompts",
    ],
    ["held", heldTokens !== null, `${heldTokens} tokens${missing}`],
    ["pool", gap !== null, showGap(gap, reason)],
    ["room", windows > 1, `larger than shared memory: its blocks come in ${windows} windows`],
    ["room", roomTokens !== null, `shared memory holds ${roomTokens} of them: ${ROOM_FIX}`],
    ["fetch", true, fetching(account)],
    ["load", isLoaded, `${loading}; loaded ${account.loadedTokens ?? 0} tokens`],
    ["compute", isForetold, showComputing(predicted)],
    ...forms.map((form): Row => [
      "stored",
      true,
      `now new blocks go as ${showForm(form)} (${form.address})`,
    ]),
    ["form", fidelity !== undefined, fidelity === undefined ? "" : `now ${showFidelity(fidelity)}`],
    ["block", true, block === "" ? "-" : `${block}, the last one looked up`],
    ["receipt", receipt !== "", `tierkv verify ${receipt}`],
    ["saved", saved !== null, showSaved(saved ?? 0)],
  ];
}

/** Nothing was measured before the first steps: 0 for the rest predicts nothing. */
function showComputing({ compute, recompute }: Explained["predicted"]): string {
  const rest = (compute ?? 0) === 0 ? "" : `${shown(compute)} for the rest, `;
  return `predicted ${rest}${shown(recompute)} for all`;
}

function showGap(gap: Explained["gap"], reason: string): string {
  if (gap === null) return "";
  const isMoved = gap.behind > 0 && reason === "never_stored";
  const behind = `${gap.behind} blocks behind it are held${isMoved ? GAP_CAUSE : ""}`;
  return `the first missing block belongs to ${gap.vault}; ${behind}`;
}

/** Likely causes where nobody remembers that the block was stored: its former owner is not asked once the list has changed. */
const GAP_CAUSE =
  " (its vault joined the list, was away, or was flushed or restarted empty since the block was stored; engines compute and store it once more)";

const ROOM_FIX = "the rest is computed unless [sidecar] arena_bytes is larger (`tierkv doctor`)";

const showSaved = (ms: number): string =>
  ms < 0
    ? `nothing: computing would have been ${showMs(-ms)} faster`
    : `${showMs(ms)} of computing, less look-up, fetch and load`;

/** Returns where restored blocks came from, by the words of a request's report. */
export function showSource(choice: Explained["choice"]): string {
  return choice === "loaded" ? "vault" : choice === "local" ? "host" : choice;
}

const shown = (ms: number | null): string => orNone(ms, showMs);

/** Nothing was measured before the first fetches and loads, and what lies here needs no fetch: 0 predicts nothing. */
const foretold = (ms: number | null): string =>
  ms === null || ms === 0 ? "not predicted" : `predicted ${showMs(ms)}`;

/** Why a plan brings no more blocks. */
const ENDS: Readonly<Record<DoneReason, string>> = {
  complete: "complete",
  end_of_hit: "all held blocks were fetched",
  no_slot: "shared memory was full",
  vault_down: "the vault did not answer, or refused",
  bad_record: "a record did not verify",
  flushed: "its blocks were flushed",
  quarantined: "its blocks are quarantined",
  deadline: "[restore] wait_ms had passed",
  slower: "computing was faster",
  not_ready: "shared memory was not ready",
  overload: "too many look-ups were under way",
};

const NOT_BROUGHT =
  "a vault did not bring a block that it had reported: it has dropped it since, or cannot read it from its disk or archive (`tierkv status`)";

function fetching(account: Explained): string {
  const { actual, predicted, heldTokens, startTokens, placedTokens, end } = account;
  const isEmpty = (heldTokens ?? 0) <= startTokens && (placedTokens ?? 0) <= startTokens;
  // The time of a fetch of nothing is that of the look-up's end.
  const isNothing = end === "end_of_hit" || (end !== null && actual.fetch === null);
  if (isEmpty && isNothing) {
    const isUnknown = heldTokens === null && actual.lookup === null;
    const held = isUnknown ? "the look-up had not ended" : "no more held than the engine has";
    return `${held}, nothing fetched`;
  }
  const time = `${shown(actual.fetch)}, ${foretold(predicted.fetch)}`;
  return `${time}; ${howEnded(account)}, ${placed(account)}`;
}

function howEnded({ heldTokens, placedTokens, end }: Explained): string {
  if (end === null) return "not ended yet";
  const isShort = end === "end_of_hit" && (placedTokens ?? 0) < (heldTokens ?? 0);
  return isShort ? NOT_BROUGHT : ENDS[end];
}

function placed({ placedTokens, fetched: { shared } }: Explained): string {
  const upTo = `placed up to ${placedTokens ?? 0}`;
  return shared === 0 ? upTo : `${upTo}, ${shared} blocks from shared memory`;
}
