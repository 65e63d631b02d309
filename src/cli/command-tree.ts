// Owns what commands there are, as data: completion and manual pages are made of it, and say what help says.
import type { Option } from "commander";
import type { Command } from "./command.ts";

export interface OptionNode {
  /** As help shows it: `-V, --version`, `--listen <address>`. */
  flags: string;
  /** `--listen`. */
  name: string;
  description: string;
  /** What stands in angle brackets; null: it takes none. */
  value: string | null;
  choices: readonly string[];
}

export interface ArgumentNode {
  name: string;
  isRequired: boolean;
  description: string;
  choices: readonly string[];
}

export interface CommandNode {
  /** Behind `tierkv`; empty for the program itself. */
  path: readonly string[];
  summary: string;
  description: string;
  arguments: ArgumentNode[];
  options: OptionNode[];
  commands: CommandNode[];
  /** What help shows last. */
  remarks: readonly string[];
  examples: readonly string[];
}

export function commandTree(command: Command, path: readonly string[] = []): CommandNode {
  const summary = command.summary();
  return {
    path,
    summary: summary === "" ? command.description() : summary,
    description: oneParagraph(command.description()),
    arguments: command.registeredArguments.map((argument) => ({
      name: argument.name(),
      isRequired: argument.required,
      description: argument.description,
      choices: argument.argChoices ?? [],
    })),
    options: command.options.filter(({ hidden }) => !hidden).map(optionOf),
    commands: command.commands.map((child) => commandTree(child, [...path, child.name()])),
    remarks: command.remarks,
    examples: command.examples,
  };
}

/** Lines of a description end where its author's did; readers have their own width. */
export const oneParagraph = (text: string): string => text.replaceAll(/\n(?=\S)/g, " ");

function optionOf(option: Option): OptionNode {
  const { flags, description, argChoices = [] } = option;
  const value = /<([^>]+)>/.exec(flags)?.[1] ?? null;
  const name = option.long ?? option.short ?? flags;
  return { flags, name, description, value, choices: argChoices };
}

/** The node and all below it. */
export function* walk(node: CommandNode): Generator<CommandNode> {
  yield node;
  for (const child of node.commands) yield* walk(child);
}
