// Owns `tierkv explain`: what the sidecar decided for recent requests, why, and how it came out.
import { EXPLAIN_MAX, STATUS_TIMEOUT_MS } from "../../limits.ts";
import type { Account } from "../../sidecar/decisions.ts";
import type { Call, Registrar } from "../call.ts";
import { showMs } from "../text.ts";

const EXIT_OK = 0;
const EXIT_UNKNOWN = 1;
const SHOWN_DEFAULT = 10;

export function addExplain({ program, action }: Registrar): void {
  program
    .command("explain")
    .argument("[request]", "request id, or its beginning; without it, the latest requests")
    .summary("show what was decided for a request, and why")
    .description(
      "Asks the sidecar of this machine what became of a request: what was looked up and found, whether it was\n" +
        "restored or computed and why, predicted and actual times, and why the first missing block is missing.\n" +
        "It remembers the latest requests only. Exit code 1 when it knows none of that name.",
    )
    .addHelpText("after", "\nExample:\n  tierkv explain cmpl-1234")
    .action(action(explain));
}

async function explain(call: Call): Promise<number> {
  const config = call.loadConfig();
  const { SidecarLink } = await import("../sidecar-link.ts");
  const [req = ""] = call.args;
  const link = new SidecarLink(config.sidecar.socket);
  try {
    await link.hello(STATUS_TIMEOUT_MS);
    const most = req === "" ? SHOWN_DEFAULT : EXPLAIN_MAX;
    const accounts = (await link.explain(req, most, STATUS_TIMEOUT_MS)) as unknown as Account[];
    const none = `the sidecar remembers no request "${req}"`;
    call.print({ requests: accounts }, accounts.length === 0 ? [none] : accounts.flatMap(describe));
    return accounts.length === 0 ? EXIT_UNKNOWN : EXIT_OK;
  } finally {
    link.close();
  }
}

const MISSES: Readonly<Record<string, string>> = {
  never_stored: "it was never offered to this sidecar",
  evicted: "it was stored, and the vault has dropped it since",
  other_namespace: "it was stored by an engine of another namespace",
  vault_down: "its vault did not answer",
  read_only: "this machine's token may only read from the vault",
  no_vault: "no vault for its class is configured",
};

const WHYS: Readonly<Record<string, string>> = {
  nothing_held: "nothing beyond the engine's own cache is held",
  cold: "link or engine were not measured yet, so it was tried",
  cheaper: "that answers first",
  slow_link: "the link is too slow for the rest",
  slow_load: "loading takes longer than computing",
  too_short: "computing it is faster than asking",
  always: "[restore] when = always",
};

/** One request in a few lines. Exported for its test. */
export function describe(account: Account): string[] {
  const { predicted, actual, startTokens, askedTokens, heldTokens, chosenTokens } = account;
  const lines = [
    `${account.req} (plan ${account.plan}, ${new Date(account.at).toISOString()})`,
    `  asked:   ${askedTokens} tokens, the engine held ${startTokens}; look-up ${shown(actual.lookup)}`,
  ];
  if (heldTokens !== null) lines.push(`  held:    ${heldTokens} tokens${missOf(account.miss)}`);
  const upTo = chosenTokens === null ? "" : ` up to ${chosenTokens}`;
  const why = WHYS[account.why] ?? account.why;
  lines.push(`  decided: ${account.choice}${upTo}${why === "" ? "" : `: ${why}`}`);
  lines.push(
    `  fetch:   ${shown(actual.fetch)}, predicted ${shown(predicted.fetch)}; ended ${account.end ?? "not yet"}` +
      `, placed up to ${account.placedTokens ?? 0}`,
    `  load:    ${shown(actual.load)}, predicted ${shown(predicted.load)}; loaded ${account.loadedTokens ?? 0} tokens`,
    `  compute: predicted ${shown(predicted.compute)} for the rest, ${shown(predicted.recompute)} for all`,
  );
  return lines;
}

function missOf(miss: string | null): string {
  if (miss === null) return "";
  const reason = miss.replace(/^dropped_/, "");
  const dropped = reason === miss ? "" : "its save was dropped here: ";
  return `; the first missing block: ${dropped}${MISSES[reason] ?? reason}`;
}

const shown = (ms: number | null): string => (ms === null ? "-" : showMs(ms));
