// Owns `tierkv exo`: puts tierKV into EXO's Python environment, without a change of EXO's source, and takes it out again.
import { resolve } from "node:path";
import type { Call, Registrar } from "../call.ts";

interface ExoOptions {
  path: string;
}

const EXIT_OK = 0;

export function addExo({ program, action }: Registrar): void {
  const exo = program
    .command("exo")
    .helpCommand(false)
    .summary("put tierKV into EXO's environment, or take it out")
    .description(
      "Adds one file to EXO's Python environment, which continues EXO's prefix cache in vaults. EXO's source stays as it\n" +
        "is; a version of EXO whose cache is another one runs without tierKV, and its log says so.",
    )
    .addHelpText("after", "\nExample:\n  tierkv exo install --path ~/exo");
  exo
    .command("install")
    .summary("add the file")
    .requiredOption("--path <path>", "EXO's checkout, with its .venv, or an environment")
    .addHelpText("after", "\nExample:\n  tierkv exo install --path ~/exo")
    .action(action(install));
  exo
    .command("uninstall")
    .summary("remove the file")
    .requiredOption("--path <path>", "as for install")
    .addHelpText("after", "\nExample:\n  tierkv exo uninstall --path ~/exo")
    .action(action(uninstall));
}

async function install(call: Call<ExoOptions>): Promise<number> {
  const { hookPath, writeHook } = await import("../exo-hook.ts");
  const path = hookPath(resolve(call.options.path));
  writeHook(path);
  call.print({ installed: path }, [`${path} was written; start EXO again`]);
  return EXIT_OK;
}

async function uninstall(call: Call<ExoOptions>): Promise<number> {
  const { hookPath, removeHook } = await import("../exo-hook.ts");
  const path = hookPath(resolve(call.options.path));
  const isRemoved = removeHook(path);
  const line = isRemoved ? `${path} was removed; start EXO again` : "there was nothing to remove";
  call.print({ removed: isRemoved ? path : null }, [line]);
  return EXIT_OK;
}
