// Owns `tierkv explain`: prints the sidecar's decisions for recent requests, with reasons and outcomes.
import { EXPLAIN_MAX } from "../../base/limits/general.ts";
import { orNone, showMs } from "../../base/text.ts";
import { askSidecar } from "../../control/ask-sidecar.ts";
import { showFidelity, showForm } from "../../control/form.ts";
import type { Explained } from "../../sidecar/sidecar.ts";
import { reasonOf, reasonText } from "../../sidecar/socket/reasons.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";

const SHOWN_DEFAULT = 10;

export function addExplain(program: Command): void {
  program
    .command("explain")
    .argument("[request]", "request id or its first characters; without it, the latest requests")
    .summary("show the sidecar's decision for a request, with reasons")
    .description(
      "Shows the sidecar's record of a request: blocks looked up and found, restored or computed with the reason, and\n" +
        "predicted and actual times. Names the reason for the first missing block. The sidecar remembers the latest\n" +
        "requests only. Exit code 1 if it knows no such request.",
    )
    .example("tierkv explain cmpl-1234")
    .does(explain);
}

async function explain(call: Call): Promise<boolean> {
  const [req = ""] = call.args;
  const most = req === "" ? SHOWN_DEFAULT : EXPLAIN_MAX;
  const { socket } = call.loadConfig().sidecar;
  const requests = await askSidecar(socket, (link) => link.explain(req, most));
  const which = req === "" ? "yet: engines have asked nothing" : `"${req}"`;
  const none = `the sidecar remembers no request ${which}`;
  call.print({ requests }, requests.length === 0 ? [none] : requests.flatMap(describe));
  return requests.length > 0;
}

/** Describes one request in a few lines. Exported for its test. */
export function describe(account: Explained): string[] {
  const { startTokens, askedTokens, chosenTokens } = account;
  const reason = reasonOf(account);
  const head = `${account.req} (plan ${account.plan}, ${new Date(account.at).toISOString()})`;
  if (account.choice === "unasked") {
    const held = `${askedTokens} tokens, the engine held ${startTokens}`;
    return [head, `  not looked up: ${reasonText(reason)} (${held})`];
  }
  const upTo = chosenTokens === null ? "" : ` up to ${chosenTokens}`;
  const lines = rowsOf(account, reason).flatMap(([label, isShown, text]) =>
    isShown ? [`  ${`${label}:`.padEnd(8)} ${text}`] : [],
  );
  return [head, `  ${account.choice}${upTo}: ${reasonText(reason)}`, ...lines];
}

type Row = [label: string, isShown: boolean, text: string];

function rowsOf(account: Explained, reason: string): Row[] {
  const { predicted, actual, ahead, beyondTokens, longerTokens, heldTokens, roomTokens } = account;
  const { gap, miss, block, receipt, saved, forms = [], fidelity } = account;
  const missing = miss === null || miss === reason ? "" : `; ${reasonText(miss)}`;
  const asked = `${account.askedTokens} tokens, the engine held ${account.startTokens}`;
  const fetched = `${shown(actual.fetch)}, predicted ${shown(predicted.fetch)}`;
  const ended = `ended ${account.end ?? "not yet"}, ${placed(account)}`;
  const loading = `${shown(actual.load)}, predicted ${shown(predicted.load)}`;
  const computing = `predicted ${shown(predicted.compute)} for the rest`;
  return [
    ["asked", true, `${asked}; look-up ${shown(actual.lookup)}`],
    ["cut", beyondTokens > 0, `${beyondTokens} more tokens are beyond what one look-up takes`],
    ["queue", ahead > 0, `${ahead} requests came before it`],
    ["blocks", longerTokens > 0, `are cut from an engine's with ${longerTokens} tokens`],
    ["saves", account.returns, "before blocks that come for the first time"],
    ["held", heldTokens !== null, `${heldTokens} tokens${missing}`],
    ["pool", gap !== null, showGap(gap)],
    ["room", roomTokens !== null, `shared memory holds ${roomTokens} of them: ${ROOM_FIX}`],
    ["fetch", true, `${fetched}; ${ended}`],
    ["load", true, `${loading}; loaded ${account.loadedTokens ?? 0} tokens`],
    ["compute", true, `${computing}, ${shown(predicted.recompute)} for all`],
    ...forms.map((form): Row => [
      "stored",
      true,
      `${form.address} takes blocks as ${showForm(form)}`,
    ]),
    ["form", fidelity !== undefined, fidelity === undefined ? "" : showFidelity(fidelity)],
    ["block", true, block === "" ? "-" : block],
    ["receipt", receipt !== "", `tierkv verify ${receipt}`],
    ["saved", saved !== null, showSaved(saved ?? 0)],
  ];
}

const showGap = (gap: Explained["gap"]): string =>
  gap === null
    ? ""
    : `the first missing block belongs to ${gap.vault}; ${gap.behind} blocks behind it are held`;

const ROOM_FIX = "the rest is computed unless [sidecar] arena_bytes is larger (`tierkv doctor`)";

const showSaved = (ms: number): string =>
  ms < 0 ? `nothing: computing would have been ${showMs(-ms)} faster` : showMs(ms);

const shown = (ms: number | null): string => orNone(ms, showMs);

function placed({ placedTokens, fetched: { shared } }: Explained): string {
  const upTo = `placed up to ${placedTokens ?? 0}`;
  return shared === 0 ? upTo : `${upTo}, ${shared} blocks from shared memory`;
}
