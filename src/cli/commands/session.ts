// Owns `tierkv session`: lists the conversations that vaults know, and keeps or releases one.
import { KEEP_S_DEFAULT, KEEP_S_MAX } from "../../base/limits/sessions.ts";
import { showBytes, showMs, table } from "../../base/text.ts";
import { duration } from "../../config/kinds.ts";
import { optionOr, parseOption } from "../../config/override.ts";
import { askSidecar } from "../../control/ask-sidecar.ts";
import type { SessionUpdate } from "../../control/sidecar-link.ts";
import type { SessionSeen, SessionsSeen } from "../../sidecar/vaults/sessions.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";
import { sessionName } from "../shell/option-kinds.ts";

interface KeepOptions {
  for?: string;
}

export function addSession(program: Command): void {
  const session = program
    .command("session")
    .summary("list, keep and release sessions (conversations)")
    .description(
      'Lists, keeps and releases sessions. A request names its session in kv_transfer_params: {"tierkv": {"session":\n' +
        '"NAME", "keep_s": 3600}}. Run it on the engine\'s machine, because its sidecar asks the vaults. Exit code 1 if no\n' +
        "vault knows the session.",
    )
    .example("tierkv session keep chat-17 --for 2h");
  session
    .command("ls")
    .summary("list the sessions that vaults know")
    .description(
      "Lists for each session how many of its records vaults hold in memory, how many of these any session keeps, their\n" +
        "size, and how long this session keeps them. Sessions share the records of a common beginning.",
    )
    .example("tierkv session ls --json")
    .does((call) => ask(call, { name: "", keepS: 0, isReleased: false }));
  session
    .command("show")
    .argument("<name>", "name of the session in its requests")
    .summary("show the kept records of a session")
    .example("tierkv session show chat-17")
    .does((call) => ask(call, { name: nameOf(call), keepS: 0, isReleased: false }));
  session
    .command("keep")
    .argument("<name>", "name of the session in its requests")
    .option("--for <time>", "time to keep it from now: 30m, 2h, 7d (default: 1h)")
    .summary("protect a session's records from eviction")
    .example("tierkv session keep chat-17 --for 2h")
    .does(keep);
  session
    .command("release")
    .argument("<name>", "name of the session in its requests")
    .summary("release a session, so that its records are evicted first")
    .example("tierkv session release chat-17")
    .does((call) => ask(call, { name: nameOf(call), keepS: 0, isReleased: true }));
}

const nameOf = ({ args }: Call): string => parseOption(sessionName, "NAME", args[0] ?? "");

function keep(call: Call<KeepOptions>): Promise<boolean> {
  const keepS = optionOr(duration(KEEP_S_MAX), "--for", call.options.for, KEEP_S_DEFAULT);
  return ask(call, { name: nameOf(call), keepS, isReleased: false });
}

async function ask(call: Call, update: SessionUpdate): Promise<boolean> {
  const { name, isReleased } = update;
  return await askSidecar(call.sidecarSocket(), async (link) => {
    // Look first, because a released session is no longer listed.
    const isKnown =
      !isReleased || (await link.sessions({ ...update, isReleased: false })).sessions.length > 0;
    const seen = await link.sessions(update);
    const isFound = isReleased ? isKnown : seen.sessions.length > 0;
    const told = isReleased ? { ...seen, released: isKnown } : seen;
    call.print(told, describe(seen, none(seen, name, isReleased && isKnown)));
    return (isFound || name === "") && seen.failed.length === 0;
  });
}

function none({ failed }: SessionsSeen, name: string, isReleased: boolean): string {
  if (isReleased) return `${name} is released`;
  const who = failed.length === 0 ? "no vault" : "no vault that answered";
  if (name !== "") return `${who} knows a session ${name}`;
  const where = failed.length === 0 ? "" : " in the vaults that answered";
  return `there are no sessions${where}: a session begins with a request that names it`;
}

const HEAD = ["session", "model", "in memory", "kept by any", "size", "kept for"];

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
