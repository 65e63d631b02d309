// Owns `tierkv explain`: what the sidecar decided for recent requests, why, and how it came out.
import { EXPLAIN_MAX } from "../../limits/general.ts";
import type { Explained } from "../../sidecar/sidecar.ts";
import { reasonOf, reasonText } from "../../sidecar/socket/reasons.ts";
import { askSidecar } from "../ask-sidecar.ts";
import type { Call } from "../call.ts";
import type { Command } from "../command.ts";
import { showForm } from "../form.ts";
import { showMs } from "../text.ts";

const SHOWN_DEFAULT = 10;

export function addExplain(program: Command): void {
  program
    .command("explain")
    .argument("[request]", "request id, or its beginning; without it, the latest requests")
    .summary("show what was decided for a request, and why")
    .description(
      "Asks the sidecar of this machine what became of a request: what was looked up and found, whether it was\n" +
        "restored or computed and why, predicted and actual times, and why the first missing block is missing.\n" +
        "It remembers the latest requests only. Exit code 1 when it knows none of that name.",
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

/** One request in a few lines. Exported for its test. */
export function describe(account: Explained): string[] {
  const { predicted, actual, startTokens, askedTokens, heldTokens, chosenTokens } = account;
  const reason = reasonOf(account);
  const head = `${account.req} (plan ${account.plan}, ${new Date(account.at).toISOString()})`;
  if (account.choice === "unasked") {
    const held = `${askedTokens} tokens, the engine held ${startTokens}`;
    return [head, `  not looked up: ${reasonText(reason)} (${held})`];
  }
  const upTo = chosenTokens === null ? "" : ` up to ${chosenTokens}`;
  const lines = [head, `  ${account.choice}${upTo}: ${reasonText(reason)}`];
  lines.push(
    `  asked:   ${askedTokens} tokens, the engine held ${startTokens}; look-up ${shown(actual.lookup)}`,
  );
  if (account.beyondTokens > 0) {
    lines.push(`  cut:     ${account.beyondTokens} more tokens are beyond what one look-up takes`);
  }
  lines.push(...said(account));
  const { miss } = account;
  const missing = miss === null || miss === reason ? "" : `; ${reasonText(miss)}`;
  if (heldTokens !== null) lines.push(`  held:    ${heldTokens} tokens${missing}`);
  lines.push(...describeGap(account));
  if (account.roomTokens !== null) {
    lines.push(`  room:    shared memory holds ${account.roomTokens} of them: ${ROOM_FIX}`);
  }
  lines.push(
    `  fetch:   ${shown(actual.fetch)}, predicted ${shown(predicted.fetch)}; ended ${account.end ?? "not yet"}` +
      `, ${placed(account)}`,
    `  load:    ${shown(actual.load)}, predicted ${shown(predicted.load)}; loaded ${account.loadedTokens ?? 0} tokens`,
    `  compute: predicted ${shown(predicted.compute)} for the rest, ${shown(predicted.recompute)} for all`,
  );
  lines.push(...stored(account));
  lines.push(...named(account));
  if (account.saved !== null) lines.push(`  saved:   ${showSaved(account.saved)}`);
  return lines;
}

/** What its engine said of it. */
function said({ ahead, longerTokens, returns }: Explained): string[] {
  const queue = `  queue:   ${ahead} requests came before it`;
  const cut = `  blocks:  are cut from an engine's with ${longerTokens} tokens`;
  const first = "  saves:   before blocks that come for the first time";
  return [
    ...(ahead > 0 ? [queue] : []),
    ...(longerTokens > 0 ? [cut] : []),
    ...(returns ? [first] : []),
  ];
}

function named({ block, receipt }: Explained): string[] {
  const lines = [`  block:   ${block === "" ? "-" : block}`];
  return receipt === "" ? lines : [...lines, `  receipt: tierkv verify ${receipt}`];
}

function describeGap({ gap }: Explained): string[] {
  if (gap === null) return [];
  const rest = `${gap.behind} blocks behind it are held`;
  return [`  pool:    the first missing block belongs to ${gap.vault}; ${rest}`];
}

function stored({ forms = [] }: Explained): string[] {
  return forms.map((form) => `  stored:  ${form.address} takes blocks as ${showForm(form)}`);
}

const ROOM_FIX = "the rest is computed unless [sidecar] arena_bytes is larger (`tierkv doctor`)";

const showSaved = (ms: number): string =>
  ms < 0 ? `nothing: computing would have been ${showMs(-ms)} faster` : showMs(ms);

const shown = (ms: number | null): string => (ms === null ? "-" : showMs(ms));

function placed({ placedTokens, fetched: { shared } }: Explained): string {
  const upTo = `placed up to ${placedTokens ?? 0}`;
  return shared === 0 ? upTo : `${upTo}, ${shared} blocks from shared memory`;
}
