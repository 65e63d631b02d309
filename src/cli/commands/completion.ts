// Owns `tierkv completion` and `tierkv man`: prints completion scripts and manual pages, both made from the commands.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { Argument } from "commander";
import { makeDirectory } from "../../base/directory.ts";
import { TierkvError } from "../../base/errors.ts";
import { packageVersion } from "../../base/version.ts";
import type { Call } from "../shell/call.ts";
import { commandTree, walk } from "../shell/command-tree.ts";
import type { Command } from "../shell/command.ts";
import { completionScript, SHELLS } from "../shell/completion.ts";
import type { Shell } from "../shell/completion.ts";
import { manualPage, manuals } from "../shell/manual.ts";

interface ManFlags {
  folder?: string;
}

export function addCompletion(program: Command): void {
  program
    .command("completion")
    .summary("print a completion script for a shell")
    .description(
      "Prints a completion script. bash: put `source <(tierkv completion bash)` into ~/.bashrc. zsh: put the same with\n" +
        "zsh after `compinit` into ~/.zshrc. fish: write it to ~/.config/fish/completions/tierkv.fish. Packages include\n" +
        "the scripts.",
    )
    .addArgument(new Argument("<shell>", "shell to complete in").choices(SHELLS))
    .example("tierkv completion bash")
    .does((call) => {
      const script = completionScript(call.args[0] as Shell, commandTree(program));
      call.print({ script }, script.trimEnd().split("\n"));
    });
}

export function addMan(program: Command): void {
  program
    .command("man")
    .argument(
      "[command...]",
      "command to describe, like `gateway status`; without it, `tierkv` itself",
    )
    .summary("print a manual page, or write all of them")
    .description(
      "Prints a page for `man`: `tierkv man vault | man -l -`. Packages include all pages.",
    )
    .option("--folder <folder>", "write all pages to this folder")
    .example("tierkv man vault")
    .does((call: Call<ManFlags>) => {
      const tree = commandTree(program);
      const { folder } = call.options;
      if (folder === undefined) {
        const page = pageOf(call, tree);
        return call.print({ page }, page.trimEnd().split("\n"));
      }
      const pages = manuals(tree, packageVersion());
      makeDirectory(folder, 0o777);
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
