// Owns the manual pages, one for the program and one for each command, in the classic man macros.
import { walk } from "./command-tree.ts";
import type { ArgumentNode, CommandNode, OptionNode } from "./command-tree.ts";

const SECTION = 1;

/** Returns a page's name, like `tierkv-gateway-status`. */
const manualName = (path: readonly string[]): string => ["tierkv", ...path].join("-");
const manualFile = (path: readonly string[]): string => `${manualName(path)}.${SECTION}`;

/** Returns every page by its file name. */
export function manuals(tree: CommandNode, version: string): Map<string, string> {
  const all = [...walk(tree)];
  return new Map(all.map((node) => [manualFile(node.path), manualPage(node, tree, version)]));
}

export function manualPage(node: CommandNode, tree: CommandNode, version: string): string {
  const { path, summary, description, options, commands, remarks, examples } = node;
  const name = manualName(path);
  const isTop = path.length === 0;
  const common = isTop ? [] : tree.options.filter(({ name: flag }) => flag !== "--version");
  const others = [...(isTop ? [] : [path.slice(0, -1)]), ...commands.map((child) => child.path)];
  const lines = [
    `.TH ${quoted(name.toUpperCase())} ${SECTION} "" ${quoted(`tierKV ${version}`)}`,
    ".SH NAME",
    `${roff(name)} \\- ${roff(summary)}`,
    ".SH SYNOPSIS",
    `.B tierkv${path.map((word) => ` ${roff(word)}`).join("")}`,
    roff(synopsis(node)),
    ...(description === "" || description === summary
      ? []
      : [".SH DESCRIPTION", ...text(description)]),
    ...section("COMMANDS", commands.flatMap(commandLines)),
    ...section("ARGUMENTS", node.arguments.flatMap(argumentLines)),
    ...section("OPTIONS", options.flatMap(optionLines)),
    ...section("COMMON OPTIONS", common.flatMap(optionLines)),
    ...section("NOTES", remarks.flatMap(text)),
    // Examples stay as typed.
    ...section("EXAMPLE", examples.length === 0 ? [] : [".nf", ...examples.map(roff), ".fi"]),
    ...section("SEE ALSO", seeAlso(others)),
  ];
  return `${lines.join("\n")}\n`;
}

const section = (title: string, lines: readonly string[]): string[] =>
  lines.length === 0 ? [] : [`.SH ${quoted(title)}`, ...lines];

function synopsis({ commands, arguments: all, options }: CommandNode): string {
  const named = all.map(({ name, isRequired }) => (isRequired ? `<${name}>` : `[${name}]`));
  const command = commands.length > 0 ? ["[command]"] : [];
  return [...(options.length > 0 ? ["[options]"] : []), ...command, ...named].join(" ");
}

const commandLines = ({ path, summary }: CommandNode): string[] => [
  ".TP",
  `.B ${roff(path.at(-1) ?? "")}`,
  roff(summary),
];

const argumentLines = ({ name, description, choices }: ArgumentNode): string[] => [
  ".TP",
  `.I ${roff(name)}`,
  roff(withChoices(description, choices)),
];

const optionLines = ({ flags, description, choices }: OptionNode): string[] => [
  ".TP",
  `.B ${roff(flags)}`,
  roff(withChoices(description, choices)),
];

function withChoices(description: string, choices: readonly string[]): string {
  if (choices.length === 0) return description;
  const list = `one of ${choices.join(", ")}`;
  return description === "" ? list : `${description}; ${list}`;
}

function seeAlso(paths: readonly (readonly string[])[]): string[] {
  const names = paths.map((path) => `.BR ${roff(manualName(path))} (${SECTION})`);
  return names.map((line, at) => (at < names.length - 1 ? `${line} ,` : line));
}

/** Turns empty lines into paragraph breaks; an indented line stays a line of its own. */
function text(paragraph: string): string[] {
  return paragraph.split("\n").flatMap((line) => (line === "" ? [".PP"] : [roff(line)]));
}

/** Escapes a leading dot or quote, which would be a request, and hyphens, which would be typeset. */
function roff(line: string): string {
  const plain = line.replaceAll("\\", "\\e").replaceAll("-", "\\-");
  return /^[.']/.test(plain) ? `\\&${plain}` : plain;
}

const quoted = (line: string): string => `"${roff(line).replaceAll('"', "\\(dq")}"`;
