// Owns `tierkv session`: which conversations vaults keep, and keeping or letting go of one.
import { duration } from "../../config/kinds.ts";
import { parseOption } from "../../config/override.ts";
import { STATUS_TIMEOUT_MS } from "../../limits/general.ts";
import { KEEP_S_DEFAULT, KEEP_S_MAX } from "../../limits/sessions.ts";
import type { SessionSeen, SessionsSeen } from "../../sidecar/vaults/sessions.ts";
import type { Call, Registrar } from "../call.ts";
import { sessionName } from "../option-kinds.ts";
import { showBytes, showMs, table } from "../text.ts";

const EXIT_OK = 0;
const EXIT_UNKNOWN = 1;

interface KeepOptions {
  for?: string;
}

export function addSession({ program, action }: Registrar): void {
  const session = program
    .command("session")
    .summary("list, keep and release conversations")
    .description(
      'A request names its conversation in kv_transfer_params: {"tierkv": {"session": "NAME", "keep_s": 3600}}. Run this on the\n' +
        "engine's machine: its sidecar asks its vaults. Exit code 1 when no vault knows a session of that name.",
    )
    .addHelpText("after", "\nExample:\n  tierkv session keep chat-17 --for 2h");
  session
    .command("ls")
    .summary("list the sessions that vaults know")
    .addHelpText("after", "\nExample:\n  tierkv session ls --json")
    .action(action((call) => ask(call, { name: "", keepS: 0, isReleased: false })));
  session
    .command("show")
    .argument("<name>", "as requests name it")
    .summary("show what is kept of one")
    .addHelpText("after", "\nExample:\n  tierkv session show chat-17")
    .action(action((call) => ask(call, { name: nameOf(call), keepS: 0, isReleased: false })));
  session
    .command("keep")
    .argument("<name>", "as requests name it")
    .option("--for <time>", "how long from now: 30m, 2h, 7d (default: 1h)")
    .summary("keep one from eviction")
    .addHelpText("after", "\nExample:\n  tierkv session keep chat-17 --for 2h")
    .action(action(keep));
  session
    .command("release")
    .argument("<name>", "as requests name it")
    .summary("let what belongs to one go first")
    .addHelpText("after", "\nExample:\n  tierkv session release chat-17")
    .action(action((call) => ask(call, { name: nameOf(call), keepS: 0, isReleased: true })));
}

const nameOf = ({ args }: Call): string => parseOption(sessionName, "NAME", args[0] ?? "");

function keep(call: Call<KeepOptions>): Promise<number> {
  const { for: time } = call.options;
  const keepS =
    time === undefined ? KEEP_S_DEFAULT : parseOption(duration(KEEP_S_MAX), "--for", time);
  return ask(call, { name: nameOf(call), keepS, isReleased: false });
}

interface Update {
  name: string;
  keepS: number;
  isReleased: boolean;
}

async function ask(call: Call, update: Update): Promise<number> {
  const { SidecarLink } = await import("../sidecar-link.ts");
  const link = new SidecarLink(call.loadConfig().sidecar.socket);
  const say = async (what: Update): Promise<SessionsSeen> => {
    const { sessions, failed } = (await link.sessions(what)) as unknown as SessionsSeen;
    return { sessions, failed };
  };
  try {
    await link.hello(STATUS_TIMEOUT_MS);
    const { name, isReleased } = update;
    // Once it is released it is not listed any more.
    const isKnown =
      !isReleased || (await say({ ...update, isReleased: false })).sessions.length > 0;
    const seen = await say(update);
    const isFound = isReleased ? isKnown : seen.sessions.length > 0;
    const told = isReleased ? { ...seen, released: isKnown } : seen;
    call.print(told, describe(seen, none(name, isReleased && isKnown)));
    const isGood = isFound || name === "";
    return isGood && seen.failed.length === 0 ? EXIT_OK : EXIT_UNKNOWN;
  } finally {
    link.close();
  }
}

function none(name: string, isReleased: boolean): string {
  if (isReleased) return `${name} is released`;
  return name === "" ? "no vault knows a session" : `no vault knows a session ${name}`;
}

const HEAD = ["session", "model", "in memory", "kept", "size", "for"];

function describe({ sessions, failed }: SessionsSeen, otherwise: string): string[] {
  const rows = sessions.map(row);
  return [
    ...(rows.length === 0 ? [otherwise] : table([HEAD, ...rows])),
    ...failed.map((reason) => `not asked: ${reason}`),
  ];
}

function row({ name, model, records, kept, keptBytes, leftMs }: SessionSeen): string[] {
  const over = leftMs > 0 && kept < records ? " (over [vault] kept_percent)" : "";
  const left = leftMs === 0 ? "-" : `${showMs(leftMs)}${over}`;
  return [name, model || "-", String(records), String(kept), showBytes(keptBytes), left];
}
