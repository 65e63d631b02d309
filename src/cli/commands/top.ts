// Owns `tierkv top`: shows the work of this machine's sidecar in a terminal, refreshed at an interval.
import { TierkvError } from "../../base/errors.ts";
import { runUntilSignal } from "../../base/lifecycle.ts";
import type { Running } from "../../base/lifecycle.ts";
import { TOP_INTERVAL_S_DEFAULT, TOP_INTERVAL_S_MAX, TOP_ONCE_MS } from "../../base/limits/seen.ts";
import { createLogger } from "../../base/log.ts";
import { sleep } from "../../base/time.ts";
import type { Config } from "../../config/config.ts";
import { askFleet, besideFleet } from "../../control/fleet.ts";
import type { AskedFleet } from "../../control/fleet.ts";
import type { SidecarLink } from "../../control/sidecar-link.ts";
import { findings, isProblem } from "../../diagnosis/findings.ts";
import type { Finding } from "../../diagnosis/findings.ts";
import type { SidecarStatus } from "../../sidecar/status.ts";
import type { Call, Outcome } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";
import { whileWaiting } from "../shell/progress.ts";
import { lookOf, openTerminal } from "../top/terminal.ts";
import { describeTop } from "../top/top-view.ts";
import type { Picture } from "../top/top-view.ts";

export interface TopOptions {
  once?: true;
  interval?: string;
  web?: true;
  listen?: string;
}

export function addTop(program: Command): void {
  program
    .command("top")
    .summary("watch engines, vaults, restores and the time saved")
    .description(
      "Shows live figures from this machine's sidecar and this user's gateway. Engines appear with their shared memory;\n" +
        "vaults with fill, rates, round trip and hit rate. Restores appear with predicted and measured times, the reasons\n" +
        "for misses, and the time saved. Problems come first. `q` quits; NO_COLOR is respected.",
    )
    .option("--once", "print once and exit; the default if the output is not a terminal")
    .option("--interval <s>", `seconds between two updates (default: ${TOP_INTERVAL_S_DEFAULT})`)
    .option("--web", "serve a web page to browsers on this machine instead")
    .option("--listen <address>", "address of the --web page (default: 127.0.0.1, a free port)")
    .example("tierkv top --once")
    .does(showTop);
}

/** Runs `tierkv top`, and `tierkv status --watch`. */
export async function showTop(call: Call<TopOptions>): Promise<Outcome> {
  const config = call.loadConfig();
  if (call.options.listen !== undefined && call.options.web !== true) {
    throw new TierkvError("USAGE", { reason: "--listen is the address of a page: add --web" });
  }
  if (call.options.web === true) return await showPage(call, config);
  const intervalMs = intervalOf(call.options.interval) * 1000;
  const { SidecarLink } = await import("../../control/sidecar-link.ts");
  const asked = await whileWaiting(
    call.io,
    () => "the gateway",
    () => askFleet(config),
  );
  const { fleet } = asked;
  // A gateway alone is shown on any machine.
  const socket = fleet === null ? call.sidecarSocket() : config.sidecar.socket;
  const link = new SidecarLink(socket);
  try {
    await besideFleet(link.hello(), fleet);
    const isOnce = call.options.once === true || call.isJson || !call.io.isTerminal;
    return isOnce
      ? await showOnce(call, config, link, asked)
      : await watch(call, config, link, intervalMs);
  } finally {
    link.close();
  }
}

/** Serves the page until a signal. The page reports a missing sidecar, and reconnects. */
async function showPage(call: Call<TopOptions>, config: Config): Promise<number> {
  const { servePage } = await import("../../page/process/serve.ts");
  const logger = createLogger("top", { level: config.log.level });
  const start = async (): Promise<Running> => {
    const page = await servePage(config, call.options.listen);
    call.print({ event: "ready", url: page.url }, [`${page.url}   (Ctrl-C ends it)`]);
    return page;
  };
  return await runUntilSignal(start, { logger });
}

async function showOnce(
  call: Call<TopOptions>,
  config: Config,
  link: SidecarLink,
  asked: AskedFleet,
): Promise<boolean> {
  const before = await pictureOf(config, link, null, { asked });
  await sleep(TOP_ONCE_MS);
  const { statusSeen } = await import("../../control/ask-sidecar.ts");
  const picture = await whileWaiting(
    call.io,
    () => "the vaults",
    () => pictureOf(config, link, before.status, { asked, read: statusSeen }),
  );
  const ok = !picture.findings.some(isProblem);
  const lines = describeTop(picture, lookOf(call.io.isTerminal));
  const { findings: found, status, fleet } = picture;
  call.print({ ok, findings: found, status, fleet }, lines);
  return ok;
}

/** Redraws until a key ends it, or a lost sidecar, with its error. */
async function watch(
  call: Call<TopOptions>,
  config: Config,
  link: SidecarLink,
  intervalMs: number,
): Promise<void> {
  const terminal = openTerminal(call.io.env);
  const stop = new AbortController();
  let isOver = false;
  void terminal.ended.then(() => {
    isOver = true;
    stop.abort();
  });
  try {
    let before: SidecarStatus | null = null;
    while (!isOver) {
      const picture = await pictureOf(config, link, before);
      const draw = (): void => terminal.show(describeTop(picture, terminal.look()));
      terminal.onResize = draw;
      draw();
      before = picture.status;
      await sleep(intervalMs, stop.signal).catch(() => undefined);
    }
  } finally {
    terminal.close();
  }
}

async function pictureOf(
  config: Config,
  link: SidecarLink,
  before: SidecarStatus | null,
  {
    asked,
    read = (one) => one.status(),
  }: { asked?: AskedFleet; read?: (link: SidecarLink) => Promise<SidecarStatus> } = {},
): Promise<Picture & { findings: Finding[] }> {
  const known = asked ?? (await askFleet(config));
  const { fleet } = known;
  const status = await besideFleet(read(link), fleet);
  const found = findings({ config, targets: [], sidecar: status, ...known });
  return { status, fleet, before, findings: found };
}

function intervalOf(text: string | undefined): number {
  if (text === undefined) return TOP_INTERVAL_S_DEFAULT;
  const seconds = Number(text);
  if (text.trim() !== "" && seconds > 0 && seconds <= TOP_INTERVAL_S_MAX) return seconds;
  const reason = `--interval ${text} is not a number of seconds above 0, ${TOP_INTERVAL_S_MAX} at most`;
  throw new TierkvError("USAGE", { reason });
}
