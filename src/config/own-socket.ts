// Owns where a process of this user listens for this user's other processes.
import { existsSync } from "node:fs";
import { join } from "node:path";
import type { Environment } from "./field.ts";

/** In a directory of this user's, which is made with mode 700, and checked, before anybody listens there. */
export function ownSocket(name: "sidecar" | "vault" | "gateway", env: Environment): string {
  const runtimeDir = env["XDG_RUNTIME_DIR"] ?? "";
  if (runtimeDir !== "" && existsSync(runtimeDir))
    return join(runtimeDir, "tierkv", `${name}.sock`);
  return `/tmp/tierkv-${process.getuid?.() ?? 0}/${name}.sock`;
}
