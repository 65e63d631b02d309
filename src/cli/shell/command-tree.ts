// Owns the tree of commands as data, from which completion scripts and manual pages are made.
import type { Option } from "commander";
import type { Command } from "./command.ts";

export interface OptionNode {
  /** Flags as help shows them: `-V, --version`, `--listen <address>`. */
  flags: string;
  /** Long name, like `--listen`. */
  name: string;
  description: string;
  /** Name of the value in angle brackets; null: the option takes none. */
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
  /** Words after `tierkv`; empty for the program itself. */
  path: readonly string[];
  summary: string;
  description: string;
  arguments: ArgumentNode[];
  options: OptionNode[];
  commands: CommandNode[];
  /** Paragraphs after the options in help. */
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

/** Joins the lines of a paragraph, because each reader wraps text at its own width. */
export const oneParagraph = (text: string): string => text.replaceAll(/\n(?=\S)/g, " ");

function optionOf(option: Option): OptionNode {
  const { flags, description, argChoices = [] } = option;
  const value = /<([^>]+)>/.exec(flags)?.[1] ?? null;
  const name = option.long ?? option.short ?? flags;
  return { flags, name, description, value, choices: argChoices };
}

/** Yields the node and all nodes below it. */
export function* walk(node: CommandNode): Generator<CommandNode> {
  yield node;
  for (const child of node.commands) yield* walk(child);
}
