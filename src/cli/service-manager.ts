// Owns what is asked of systemd and launchd: to take a service up, to end it, and how it is.
import { execFileSync } from "node:child_process";
import { TierkvError } from "../errors.ts";
import { SERVICE_CALL_MS } from "../limits/tools.ts";
import { label, unitName } from "./service-units.ts";
import type { Service } from "./service-units.ts";

type Managed = Pick<Service, "name" | "scope" | "manager">;

/** Command lines, in their order. */
export function startCommands(service: Managed, path: string, uid: number): string[][] {
  if (service.manager === "launchd")
    return [["launchctl", "bootstrap", domain(service, uid), path]];
  const systemctl = ["systemctl", ...scopeFlag(service)];
  return [
    [...systemctl, "daemon-reload"],
    [...systemctl, "enable", "--now", unitName(service.name)],
  ];
}

/** Before its file goes. */
export function stopCommands(service: Managed, uid: number): string[][] {
  if (service.manager === "launchd") {
    return [["launchctl", "bootout", `${domain(service, uid)}/${label(service.name)}`]];
  }
  return [["systemctl", ...scopeFlag(service), "disable", "--now", unitName(service.name)]];
}

/** After its file has gone. */
export function forgetCommands(service: Managed): string[][] {
  if (service.manager === "launchd") return [];
  return [["systemctl", ...scopeFlag(service), "daemon-reload"]];
}

/** What the manager calls it (`active`, `failed` …), or why it cannot be asked. */
export function stateOf(service: Managed, uid: number): string {
  const isLaunchd = service.manager === "launchd";
  const words = isLaunchd
    ? ["launchctl", "print", `${domain(service, uid)}/${label(service.name)}`]
    : ["systemctl", ...scopeFlag(service), "is-active", unitName(service.name)];
  const { isOk, text } = call(words);
  if (isLaunchd) return isOk ? (/state = (.+)/.exec(text)?.[1] ?? "loaded") : "not loaded";
  return text.split("\n", 1)[0] ?? "";
}

/** Throws SYSTEM with what the manager said. */
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
    const {
      stdout = "",
      stderr = "",
      message,
    } = error as Error & {
      stdout?: string;
      stderr?: string;
    };
    const said = [stdout, stderr].map((text) => text.trim()).filter((text) => text !== "");
    return { isOk: false, text: said.join("\n") || message };
  }
}
