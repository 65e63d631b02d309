// Owns the completion scripts for bash, zsh and fish, which contain all words and never start the program.
import { walk } from "./command-tree.ts";
import type { CommandNode, OptionNode } from "./command-tree.ts";

export const SHELLS = ["bash", "zsh", "fish"] as const;
export type Shell = (typeof SHELLS)[number];

/** Names of values that are paths. */
const FILES: ReadonlySet<string> = new Set(["path", "file", "folder"]);

interface Word {
  text: string;
  summary: string;
}

/** One position on a command line, after the words of `path`. */
interface Place {
  /** Words before it, like `gateway status`; empty at the beginning. */
  path: string;
  commands: Word[];
  /** All words that may follow: commands, choices of arguments, and options. */
  words: Word[];
  options: OptionNode[];
  takesFile: boolean;
}

export function completionScript(shell: Shell, tree: CommandNode): string {
  const all = places(tree);
  const write = { bash: bashScript, zsh: zshScript, fish: fishScript }[shell];
  return `# Completes \`tierkv\` in ${shell}; made by \`tierkv completion ${shell}\`.\n${write(all)}`;
}

function places(tree: CommandNode): Place[] {
  const common = [...tree.options.filter(({ name }) => name !== "--version"), HELP];
  return [...walk(tree)].map((node) => {
    const isTop = node.path.length === 0;
    const options = isTop ? [...node.options, HELP] : [...node.options, ...common];
    const commands = node.commands.map(({ path, summary }) => word(path.at(-1) ?? "", summary));
    if (isTop) commands.push(word("help", "show help, of all or of one command"));
    const choices = node.arguments.flatMap((argument) => argument.choices);
    return {
      path: node.path.join(" "),
      commands,
      words: [
        ...commands,
        ...choices.map((choice) => word(choice, node.summary)),
        ...options.map(({ name, description }) => word(name, description)),
      ],
      options,
      takesFile: node.arguments.some(({ name }) => FILES.has(name)),
    };
  });
}

const HELP: OptionNode = {
  flags: "-h, --help",
  name: "--help",
  description: "show help",
  value: null,
  choices: [],
};

function word(text: string, summary: string): Word {
  return { text, summary: summary.split(/[;:(]/, 1)[0]?.trim() ?? "" };
}

/** Pairs of position and next command, as ` gateway` and `gateway status`. */
const steps = (all: readonly Place[]): string[] =>
  all.flatMap(({ path, commands }) => commands.map(({ text }) => `${path} ${text}`));

interface Valued {
  /** Position and option, like `vault:--role`. */
  at: string;
  option: OptionNode;
}

const valued = (all: readonly Place[]): Valued[] =>
  all.flatMap(({ path, options }) =>
    options
      .filter(({ value }) => value !== null)
      .map((option) => ({ at: `${path}:${option.name}`, option })),
  );

/** Splits options by value: a fixed choice, a file, or free text. */
function byValue(all: readonly Place[]): { chosen: Valued[]; files: Valued[]; free: Valued[] } {
  const every = valued(all);
  const isChosen = ({ option }: Valued): boolean => option.choices.length > 0;
  const isFile = (one: Valued): boolean => !isChosen(one) && FILES.has(one.option.value ?? "");
  return {
    chosen: every.filter(isChosen),
    files: every.filter(isFile),
    free: every.filter((one) => !isChosen(one) && !isFile(one)),
  };
}

const list = (texts: readonly string[]): string => texts.map((text) => `"${text}"`).join("|");
const texts = (words: readonly Word[]): string => words.map(({ text }) => text).join(" ");

function bashScript(all: readonly Place[]): string {
  const { chosen, files, free } = byValue(all);
  return `_tierkv() {
  local cur=\${COMP_WORDS[COMP_CWORD]} at= word words= i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=\${COMP_WORDS[i]}
    case "$at $word" in
      ${list(steps(all))}) at=\${at:+$at }$word ;;
    esac
  done
  case "$at:\${COMP_WORDS[COMP_CWORD - 1]}" in
${chosen.map(({ at, option }) => `    "${at}") words="${option.choices.join(" ")}" ;;`).join("\n")}
    ${list(files.map(({ at }) => at))}) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    ${list(free.map(({ at }) => at))}) return ;;
    *) case "$at" in
${all.map(({ path, words }) => `      "${path}") words="${texts(words)}" ;;`).join("\n")}
    esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
${all
  .filter(({ takesFile }) => takesFile)
  .map(({ path }) => `  [ "$at" != "${path}" ] || COMPREPLY+=($(compgen -f -- "$cur"))\n`)
  .join("")}}
complete -o filenames -F _tierkv tierkv
`;
}

/** Escapes text for single quotes in zsh. */
const zshText = (text: string): string => text.replaceAll("'", "'\\''");
const zshWord = ({ text, summary }: Word): string =>
  `'${zshText(text.replaceAll(":", "\\:"))}:${zshText(summary)}'`;

/** The script's variable is \`at\`, because \`path\` is bound to PATH in zsh. */
function zshScript(all: readonly Place[]): string {
  const { chosen, files, free } = byValue(all);
  return `#compdef tierkv
_tierkv() {
  local at= word
  local -a found flags
  for word in \${words[2,CURRENT-1]}; do
    case "$at $word" in
      (${list(steps(all))}) at=\${at:+$at }$word ;;
    esac
  done
  case "$at:\${words[CURRENT-1]}" in
${chosen.map(({ at, option }) => `    ("${at}") compadd -- ${option.choices.join(" ")}; return ;;`).join("\n")}
    (${list(files.map(({ at }) => at))}) _files; return ;;
    (${list(free.map(({ at }) => at))}) return ;;
  esac
  case "$at" in
${all.map(zshCase).join("\n")}
  esac
  _describe tierkv found
  _describe -o option flags
}
if [ "$funcstack[1]" = _tierkv ]; then _tierkv "$@"; else compdef _tierkv tierkv; fi
`;
}

function zshCase({ path, words, takesFile }: Place): string {
  const isFlag = ({ text }: Word): boolean => text.startsWith("-");
  const listed = (some: readonly Word[]): string => some.map(zshWord).join(" ");
  const found = listed(words.filter((one) => !isFlag(one)));
  const flags = listed(words.filter(isFlag));
  return `    ("${path}") found=(${found}); flags=(${flags})${takesFile ? "; _files" : ""} ;;`;
}

const fishText = (text: string): string => text.replaceAll("\\", "\\\\").replaceAll("'", "\\'");

function fishScript(all: readonly Place[]): string {
  const switches = steps(all).map((step) => `'${step}'`);
  const lines = all.flatMap(({ path, words, options, takesFile }) => {
    const start = `complete -c tierkv -n 'test "$(__tierkv_at)" = "${path}"'`;
    const plain = words.filter(({ text }) => !text.startsWith("-"));
    return [
      ...(takesFile ? [`${start} -F`] : []),
      ...plain.map(({ text, summary }) => `${start} -a '${text}' -d '${fishText(summary)}'`),
      ...options.map((option) => `${start} ${fishOption(option)}`),
    ];
  });
  return `function __tierkv_at
  set -l at ''
  for word in (commandline -opc)[2..]
    switch "$at $word"
      case ${switches.join(" ")}
        set at (string trim -- "$at $word")
    end
  end
  echo $at
end
complete -c tierkv -f
${lines.join("\n")}
`;
}

function fishOption({ name, value, choices, description }: OptionNode): string {
  const { summary } = word(name, description);
  const start = `-l ${name.replace(/^--/, "")} -d '${fishText(summary)}'`;
  if (value === null) return start;
  if (choices.length > 0) return `${start} -x -a '${choices.join(" ")}'`;
  return FILES.has(value) ? `${start} -r -F` : `${start} -x`;
}
