// Owns `tierkv explain`: prints the sidecar's decisions for recent requests, with reasons and outcomes.
import { EXPLAIN_MAX } from "../../base/limits/general.ts";
import { askSidecar } from "../../control/ask-sidecar.ts";
import { causeOf, roleOf } from "../../control/divergence.ts";
import type { DivergenceText } from "../../control/divergence.ts";
import { describe } from "../../control/explanation.ts";
import type { Explained } from "../../sidecar/sidecar.ts";
import { divergenceTexts } from "../explain/divergence-text.ts";
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
        "predicted and actual times. Names the reason for the first missing block, and the first token at which the prompt\n" +
        "stops matching an earlier one, with the text around it if the engine's tokenizer.json can be read here. The\n" +
        "sidecar remembers the latest requests only. Exit code 1 if it knows no such request.",
    )
    .example("tierkv explain cmpl-1234")
    .does(explain);
}

async function explain(call: Call): Promise<boolean> {
  const [req = ""] = call.args;
  const most = req === "" ? SHOWN_DEFAULT : EXPLAIN_MAX;
  const socket = call.sidecarSocket();
  const requests = await askSidecar(socket, (link) => link.explain(req, most));
  const which = req === "" ? "yet: no engine has sent one" : `"${req}"`;
  const none = `the sidecar remembers no request ${which}`;
  const texts = await divergenceTexts(requests);
  const shown = requests.map((account, at) => withText(account, texts[at] ?? null));
  const lines = requests.flatMap((account, at) => describe(account, texts[at] ?? null));
  call.print({ requests: shown }, requests.length === 0 ? [none] : lines);
  return requests.length > 0;
}

/** Adds the text, role and cause of a divergence, for --json. */
function withText(account: Explained, text: DivergenceText | null): object {
  const { divergence } = account;
  if (divergence === null) return account;
  const cause = causeOf(divergence, text);
  const role = text === null ? null : roleOf(text.head);
  return { ...account, divergence: { ...divergence, cause, role, text } };
}
