// Owns `tierkv completion` and `tierkv man`: prints completion scripts and manual pages, both made from the commands.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Argument } from "commander";
import { TierkvError } from "../../errors.ts";
import { packageVersion } from "../../version.ts";
import type { Call } from "../call.ts";
import { commandTree, walk } from "../command-tree.ts";
import type { Command } from "../command.ts";
import { completionScript, SHELLS } from "../completion.ts";
import type { Shell } from "../completion.ts";
import { manualPage, manuals } from "../manual.ts";

interface ManFlags {
  folder?: string;
}

export function addCompletion(program: Command): void {
  program
    .command("completion")
    .summary("print what lets a shell complete command lines")
    .description(
      "Prints a script for the shell. bash: `source <(tierkv completion bash)` in ~/.bashrc. zsh: the same in ~/.zshrc, behind\n" +
        "`compinit`. fish: into ~/.config/fish/completions/tierkv.fish. Packages bring the scripts along.",
    )
    .addArgument(new Argument("<shell>", "which one").choices(SHELLS))
    .example("tierkv completion bash")
    .does((call) => {
      const script = completionScript(call.args[0] as Shell, commandTree(program));
      call.print({ script }, script.trimEnd().split("\n"));
    });
}

export function addMan(program: Command): void {
  program
    .command("man")
    .argument("[command...]", "of this command, like `gateway status`")
    .summary("print a manual page, or write all of them")
    .description(
      "Prints a page for `man`: `tierkv man vault | man -l -`. Packages bring the pages along.",
    )
    .option("--folder <folder>", "write every page there")
    .example("tierkv man vault")
    .does((call: Call<ManFlags>) => {
      const tree = commandTree(program);
      const { folder } = call.options;
      if (folder === undefined) {
        const page = pageOf(call, tree);
        return call.print({ page }, page.trimEnd().split("\n"));
      }
      const pages = manuals(tree, packageVersion());
      mkdirSync(folder, { recursive: true });
      for (const [name, page] of pages) writeFileSync(join(folder, name), page);
      call.print({ folder, pages: [...pages.keys()] }, [`${folder}: ${pages.size} pages`]);
    });
}

function pageOf(call: Call, tree: ReturnType<typeof commandTree>): string {
  const wanted = call.args.join(" ");
  const node = [...walk(tree)].find(({ path }) => path.join(" ") === wanted);
  if (node !== undefined) return manualPage(node, tree, packageVersion());
  throw new TierkvError("USAGE", { reason: `there is no command "${wanted.slice(0, 100)}"` });
}
