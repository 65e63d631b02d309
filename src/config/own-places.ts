// Owns this user's places: home, XDG directories, state, and the sockets of this user's processes.
import { existsSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import type { Environment } from "./field.ts";

/** A user of a service may be in no list of users and have no home: `/`, as for systemd. */
export function homeOf(env: Environment): string {
  if (env["HOME"] !== undefined) return env["HOME"];
  try {
    return homedir();
  } catch {
    return "/";
  }
}

/** The variable's directory, else `usual` below the home. */
export function xdgHome(
  variable: "XDG_CONFIG_HOME" | "XDG_STATE_HOME",
  usual: string,
  env: Environment,
): string {
  return env[variable] || join(homeOf(env), usual);
}

/** Where systemd keeps the state of a machine's vault. */
export const SERVICE_STATE = "/var/lib/tierkv";

/** systemd names the directory of a service; other users have theirs. */
export function stateDir(env: Environment): string {
  const [given = ""] = (env["STATE_DIRECTORY"] ?? "").split(":");
  return given || join(xdgHome("XDG_STATE_HOME", ".local/state", env), "tierkv");
}

/** In a directory of this user, which is created with mode 700 and checked before a process listens there. */
export function ownSocket(name: "sidecar" | "vault" | "gateway", env: Environment): string {
  const runtimeDir = env["XDG_RUNTIME_DIR"] ?? "";
  if (runtimeDir !== "" && existsSync(runtimeDir))
    return join(runtimeDir, "tierkv", `${name}.sock`);
  return `/tmp/tierkv-${process.getuid?.() ?? 0}/${name}.sock`;
}
