// Owns `tierkv install`: adds tierKV to EXO's Python environment without changing EXO's source, and the removal.
import { resolve } from "node:path";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";

interface InstallFlags {
  exoPath: string;
}

export function addInstall(program: Command): void {
  program
    .command("install")
    .summary("put tierKV into the environment of EXO, an engine for Macs")
    .description(
      "Adds one file to EXO's Python environment; the file extends EXO's prefix cache with vaults. EXO's source stays\n" +
        "unchanged. EXO versions with an incompatible cache run without tierKV and log the reason. `tierkv uninstall\n" +
        "--exo-path` removes the file. vLLM and mlx-lm need no such step. `tierkv service install` installs services.",
    )
    .requiredOption("--exo-path <path>", "EXO's checkout with its .venv, or a Python environment")
    .example("tierkv install --exo-path ~/exo")
    .does(install);
}

async function install(call: Call<InstallFlags>): Promise<void> {
  const { hookPath, writeHook } = await import("../../extras/exo/hook.ts");
  const path = hookPath(resolve(call.options.exoPath));
  writeHook(path);
  call.print({ installed: path }, [`${path} was written; start EXO again`]);
}

/** Runs `tierkv uninstall --exo-path`. */
export async function removeFromExo(call: Call, exoPath: string): Promise<void> {
  const { hookPath, removeHook } = await import("../../extras/exo/hook.ts");
  const path = hookPath(resolve(exoPath));
  const isRemoved = removeHook(path);
  const line = isRemoved ? `${path} was removed; start EXO again` : "there was nothing to remove";
  call.print({ removed: isRemoved ? [path] : [], failed: [] }, [line]);
}
