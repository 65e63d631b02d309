// Owns the commands to systemd and launchd that start, stop and query a service.
import { execFileSync } from "node:child_process";
import { TierkvError } from "../../base/errors.ts";
import { SERVICE_CALL_MS } from "../../base/limits/tools.ts";
import { label, unitName } from "./service-units.ts";
import type { Service } from "./service-units.ts";

type Managed = Pick<Service, "name" | "scope" | "manager">;

/** Returns the command lines that start the service, in order. */
export function startCommands(service: Managed, path: string, uid: number): string[][] {
  if (service.manager === "launchd")
    return [["launchctl", "bootstrap", domain(service, uid), path]];
  const systemctl = ["systemctl", ...scopeFlag(service)];
  return [
    [...systemctl, "daemon-reload"],
    [...systemctl, "enable", "--now", unitName(service.name)],
  ];
}

/** Returns the command lines to run before the service's file is removed. */
export function stopCommands(service: Managed, uid: number): string[][] {
  if (service.manager === "launchd") {
    return [["launchctl", "bootout", `${domain(service, uid)}/${label(service.name)}`]];
  }
  return [["systemctl", ...scopeFlag(service), "disable", "--now", unitName(service.name)]];
}

/** Returns the command lines to run after the service's file is removed. */
export function forgetCommands(service: Managed): string[][] {
  if (service.manager === "launchd") return [];
  return [["systemctl", ...scopeFlag(service), "daemon-reload"]];
}

/** Returns the state in the manager's words (`active`, `failed` …), or the error of the query. */
export function stateOf(service: Managed, uid: number): string {
  const isLaunchd = service.manager === "launchd";
  const words = isLaunchd
    ? ["launchctl", "print", `${domain(service, uid)}/${label(service.name)}`]
    : ["systemctl", ...scopeFlag(service), "is-active", unitName(service.name)];
  const { isOk, text } = call(words);
  if (isLaunchd) return isOk ? (/state = (.+)/.exec(text)?.[1] ?? "loaded") : "not loaded";
  const [state = ""] = text.split("\n", 1);
  return NO_MANAGER.test(state) ? `not known: ${state}` : state;
}

/** systemctl is not there, or nobody answers it, as in a container or a session without a bus. */
const NO_MANAGER =
  /^this machine has no |connect to (?:\S+ scope )?bus|not been booted with systemd/i;

/** Runs the commands in order. Throws SYSTEM with the manager's message. */
export function runAll(commands: readonly string[][]): void {
  for (const words of commands) {
    const { isOk, text } = call(words);
    if (isOk) continue;
    const said = text === "" ? "it failed" : text.replaceAll("\n", "; ");
    throw new TierkvError("SYSTEM", { reason: `\`${words.join(" ")}\`: ${said}` });
  }
}

const scopeFlag = ({ scope }: Managed): string[] => (scope === "user" ? ["--user"] : []);

const domain = ({ scope }: Managed, uid: number): string =>
  scope === "user" ? `gui/${uid}` : "system";

function call([program = "", ...args]: readonly string[]): { isOk: boolean; text: string } {
  try {
    const stdio = ["ignore", "pipe", "pipe"] as ["ignore", "pipe", "pipe"];
    const text = execFileSync(program, args, { encoding: "utf8", stdio, timeout: SERVICE_CALL_MS });
    return { isOk: true, text: text.trim() };
  } catch (error) {
    const { code, stdout, stderr, message } = error as NodeJS.ErrnoException & {
      stdout?: string | null;
      stderr?: string | null;
    };
    if (code === "ENOENT") return { isOk: false, text: `this machine has no ${program}` };
    const said = [stdout, stderr].map((text) => text?.trim() ?? "").filter((text) => text !== "");
    return { isOk: false, text: said.join("\n") || message };
  }
}
