// Owns `tierkv config`: checks a configuration file, and prints the example and the reference made from the schema.
import type { Config } from "../../config/config.ts";
import type { Environment } from "../../config/field.ts";
import { checkFile } from "../../config/load.ts";
import { renderDocs, renderExample } from "../../config/render.ts";
import type { Folders } from "../config/named-folders.ts";
import type { Sizes } from "../config/sizes.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";

const EXIT_CONFIG = 2;
const NOTHING: Named = { folders: [], problems: [], notes: [] };

type Named = Folders & Pick<Sizes, "notes">;

export function addConfig(program: Command): void {
  const config = program
    .command("config")
    .helpCommand(false)
    .summary("check the configuration, or print an example or the reference")
    .description("Checks the configuration, or prints an example or the reference of all keys.")
    .example("tierkv config check --config ./tierkv.toml");
  config
    .command("check")
    .summary("show every error in the configuration")
    .description(
      "Shows all errors in the configuration at once. Reads its keys, tokens and certificates as the programs do, and\n" +
        "checks that its folders exist or can be made, and that memory and disks are as large as it claims. Run it as the\n" +
        "user of the programs, on their machine. Changes nothing. Exit code 0 if the configuration is valid, 2 if not.",
    )
    .example("tierkv config check --config ./tierkv.toml")
    .does(check);
  config
    .command("example")
    .summary("print a tierkv.toml to start from")
    .description("Prints a tierkv.toml to start from, with the meaning and default of every key.")
    .example("tierkv config example > tierkv.toml")
    .does((call) => print(call, "example", renderExample()));
  config
    .command("docs")
    .summary("print the reference of all keys as Markdown")
    .description("Prints the reference of all keys as Markdown, the text of docs/config.md.")
    .example("tierkv config docs > docs/config.md")
    .does((call) => print(call, "docs", renderDocs()));
}

async function check(call: Call): Promise<true | number> {
  const { config, problems, path } = checkFile(call.configPath, call.io.env);
  const found = problems.map((error) => ({ key: null as string | null, error }));
  const named = config === null ? NOTHING : await namedBy(config, call.io.env);
  found.push(...named.problems);
  const isGood = found.length === 0;
  const shown = found.map(({ key, error: { code, message, details } }) => ({
    code,
    message,
    ...details,
    ...(key === null ? {} : { key }),
  }));
  for (const { key, error } of call.isJson ? [] : found) {
    const of = key === null ? "" : `${key}: `;
    call.io.err(`tierkv: ${of}${error.message} (${error.code})`);
  }
  const { folders, notes } = named;
  const usable = isGood ? config : null;
  const result = { ok: isGood, path, problems: shown, notes, folders, config: usable };
  const good = `configuration is good: ${path ?? "no file, the defaults hold"}`;
  const lines = folders.map(({ key, folder, state }) => `  ${key}: ${folder} is ${state}`);
  const doubts = notes.map((note) => `NOTE: ${note}`);
  call.print(result, isGood ? [good, ...lines, ...doubts] : []);
  return isGood || EXIT_CONFIG;
}

/** Checks the named folders and files. Loaded late, because a check of the text alone needs no code that reads files. */
async function namedBy(config: Config, env: Environment): Promise<Named> {
  const { namedFolders } = await import("../config/named-folders.ts");
  const { fileProblems } = await import("../config/named-files.ts");
  const { vaultSizes } = await import("../config/sizes.ts");
  const { strangePlaces } = await import("../config/places.ts");
  const { hasTwoPlaces, ONE_PLACE } = await import("../../cluster/targets.ts");
  const { folders, problems } = namedFolders(config, env);
  // Only a vault's machine can tell how large its disks are.
  const sizes = config.cluster.role === "inference" ? NOTHING : vaultSizes(config);
  const found = await fileProblems(config, problems);
  const notes = hasTwoPlaces(config.cluster) ? [] : [ONE_PLACE];
  return {
    folders,
    problems: [...found, ...sizes.problems],
    notes: [...notes, ...strangePlaces(config), ...sizes.notes],
  };
}

function print(call: Call, name: string, text: string): void {
  call.print({ [name]: text }, [text.trimEnd()]);
}
