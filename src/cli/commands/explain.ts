// Owns `tierkv explain`: prints the sidecar's decisions for recent requests, with reasons and outcomes.
import { EXPLAIN_MAX } from "../../base/limits/general.ts";
import { askSidecar } from "../../control/ask-sidecar.ts";
import { describe } from "../../control/explanation.ts";
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
