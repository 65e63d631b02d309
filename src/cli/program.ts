// Owns the command line: common options, help, and the one place that turns an error into a line and an exit code.
import { CommanderError, Help } from "commander";
import type { Command as Plain } from "commander";
import { TierkvError, toTierkvError } from "../base/errors.ts";
import { fatalLine } from "../base/log.ts";
import { printable } from "../base/printable.ts";
import { packageVersion } from "../base/version.ts";
import { nearest } from "../config/nearest.ts";
import { addBench } from "./commands/bench.ts";
import { addBundle } from "./commands/bundle.ts";
import { addCerts } from "./commands/certs.ts";
import { addCompletion, addMan } from "./commands/completion.ts";
import { addConfig } from "./commands/config.ts";
import { addDemo } from "./commands/demo.ts";
import { addDoctor } from "./commands/doctor.ts";
import { addExplain } from "./commands/explain.ts";
import { addFidelity } from "./commands/fidelity.ts";
import { addFlush } from "./commands/flush.ts";
import { addGateway } from "./commands/gateway.ts";
import { addInit } from "./commands/init.ts";
import { addInstall } from "./commands/install.ts";
import { addInvite } from "./commands/invite.ts";
import { addJoin } from "./commands/join.ts";
import { addPeers, addRevoke } from "./commands/peers.ts";
import { addPlan } from "./commands/plan.ts";
import { addService } from "./commands/service.ts";
import { addSession } from "./commands/session.ts";
import { addSidecar } from "./commands/sidecar.ts";
import { addStatus } from "./commands/status.ts";
import { addTop } from "./commands/top.ts";
import { addUninstall } from "./commands/uninstall.ts";
import { addVault } from "./commands/vault.ts";
import { addVaults } from "./commands/vaults.ts";
import { addVerify } from "./commands/verify.ts";
import { addWarm } from "./commands/warm.ts";
import { JSON_SCHEMA } from "./shell/call.ts";
import type { Perform } from "./shell/call.ts";
import { oneParagraph } from "./shell/command-tree.ts";
import { Command } from "./shell/command.ts";
import type { Io } from "./shell/io.ts";

const EXIT_OK = 0;
const EXIT_USAGE = 2;
/** Help is no wider, because longer lines read badly; a narrower terminal gets its own width. */
const HELP_COLUMNS = 80;
/** Texts in a narrower column stay whole. */
const WRAP_COLUMNS = 20;

/** Runs one command line, without `node` and the script. Returns the exit code; never throws. */
export async function runCommandLine(
  argv: readonly string[],
  outside: Io,
  perform: Perform = (run, call) => run(call),
): Promise<number> {
  const io = shownSafely(outside);
  const isJson = argv.includes("--json");
  let exitCode = EXIT_OK;
  const program = buildProgram(io, perform, (code) => {
    exitCode = code;
  });
  const unknown = unknownWord(program, argv);
  if (unknown !== null) return fail(new TierkvError("USAGE", { reason: unknown }), isJson, io);
  try {
    await program.parseAsync(asTyped(argv), { from: "user" });
    return exitCode;
  } catch (error) {
    if (error instanceof CommanderError) {
      if (error.exitCode === 0) return EXIT_OK;
      // Without a command commander has shown help already.
      if (error.code === "commander.help") {
        const reason = `the command is missing; ${helpLine(program, argv)}`;
        if (isJson) io.out(errorDocument(new TierkvError("USAGE", { reason })));
        return EXIT_USAGE;
      }
      return fail(usageError(error, helpLine(program, argv)), isJson, io);
    }
    return fail(toTierkvError(error), isJson, io);
  }
}

/** Options that show the version, and `--json`, which may stand beside each of them. */
const VERSION_OPTIONS = ["-v", "-V", "--version"];

/** Returns the words for commander, which knows neither `-v`, nor `--json --version`, nor `help` of a command below another. */
function asTyped(argv: readonly string[]): readonly string[] {
  const others = argv.filter((word) => word !== "--json");
  const [only = ""] = others;
  if (others.length === 1 && VERSION_OPTIONS.includes(only))
    return ["version", ...argv.filter((word) => word === "--json")];
  const at = helpAt(argv);
  return at >= 0 && wordsOf(argv).length > 1 ? [...argv.toSpliced(at, 1), "--help"] : argv;
}

/** Returns the place of the command `help`, which common options may precede; -1: another command. */
function helpAt(argv: readonly string[]): number {
  return wordsOf(argv)[0] === "help" ? argv.indexOf("help") : -1;
}

/** Returns the command line that shows the help of the command that was meant. */
function helpLine(program: Command, argv: readonly string[]): string {
  const path = ["tierkv"];
  let command: Command | undefined = program;
  for (const word of operandsOf(argv)) {
    command = command?.commands.find((one) => one.name() === word);
    if (command === undefined) break;
    path.push(word);
  }
  return `see \`${path.join(" ")} --help\``;
}

/** Returns what is wrong with a request for help on a command that there is not, which commander answers with all help. */
function unknownWord(program: Command, argv: readonly string[]): string | null {
  const isCommand = helpAt(argv) >= 0;
  const isHelp = isCommand || argv.some((word) => word === "--help" || word === "-h");
  let command = program;
  for (const word of isHelp ? operandsOf(argv) : []) {
    if (word === "help") return null;
    if (command.commands.length === 0) {
      const line = helpLine(program, argv);
      return isCommand ? `${command.name()} has no command '${word.slice(0, 100)}'; ${line}` : null;
    }
    const child = command.commands.find((one) => one.name() === word);
    if (child === undefined) {
      const names = command.commands.map((one) => one.name());
      const near = nearest(word, names);
      const meant = near === null ? "" : ` (did you mean ${near}?)`;
      return `unknown command '${word.slice(0, 100)}'${meant}; ${helpLine(program, argv)}`;
    }
    command = child;
  }
  return null;
}

/** Returns the words of a command line that are no options, and no values of the options of all commands. */
function wordsOf(argv: readonly string[]): string[] {
  return argv.filter((word, at) => !word.startsWith("-") && argv[at - 1] !== "--config");
}

/** Returns the same without the command `help`. */
function operandsOf(argv: readonly string[]): string[] {
  const words = wordsOf(argv);
  return words[0] === "help" ? words.slice(1) : words;
}

/** Escapes control characters in results, because names come from other machines and files; errors are escaped already. */
function shownSafely(io: Io): Io {
  return {
    ...io,
    out: (line) => io.out(printable(line)),
    // Also the process's own handlers of errors find it.
    set logName(name) {
      io.logName = name;
    },
    get logName() {
      return io.logName;
    },
  };
}

/** Prints the error in one line, or logs it where the command has a log; with --json also as a result. Returns the exit code. */
export function fail(error: TierkvError, isJson: boolean, io: Io): number {
  const { code, message, details, exitCode } = error;
  if (isJson) io.out(errorDocument(error));
  const { logName } = io;
  const isPlain = logName === undefined || process.stderr.isTTY;
  io.err(
    isPlain ? `tierkv: ${message} (${code})` : fatalLine(logName, { code, ...details }, message),
  );
  return exitCode;
}

/** Returns a failed command's JSON document. */
function errorDocument({ code, message, details }: TierkvError): string {
  return JSON.stringify({ schema: JSON_SCHEMA, error: { code, message, ...details } });
}

function usageError(error: CommanderError, help: string): TierkvError {
  const reason = error.message
    .replace(/^error: /, "")
    .replace(/^command-argument value (.+) is invalid for argument (.+?)\./, "$2 cannot be $1.")
    .replace(/\(Did you mean/, "(did you mean")
    .replace(/\s*\n\s*/g, " ")
    .replace(/\.$/, "");
  return new TierkvError("USAGE", { reason: `${reason}; ${help}` });
}

function buildProgram(io: Io, perform: Perform, onCode: (code: number) => void): Command {
  const program = new Command("tierkv", { io, perform, onCode })
    .description(
      "Keeps vLLM's KV-cache blocks on idle machines and restores them before they are needed.",
    )
    .version(packageVersion(), "-V, --version", "show the version")
    .option(
      "--config <path>",
      "path of the configuration file (default: TIERKV_CONFIG, ./tierkv.toml, ~/.config/tierkv/tierkv.toml, /etc/tierkv/tierkv.toml)",
    )
    .option("--json", "print results as JSON")
    .helpOption("-h, --help", "show help")
    .helpCommand("help [command]", "show help for tierkv or for one command")
    .configureHelp({
      showGlobalOptions: true,
      helpWidth: Math.min(HELP_COLUMNS, io.columns),
      minWidthToWrap: WRAP_COLUMNS,
      commandDescription: aboutOf,
      optionDescription: (option) => {
        const text = new Help().optionDescription(option);
        return option.mandatory ? `${text} (required)` : text;
      },
    })
    .configureOutput({
      writeOut: (text) => io.out(text.trimEnd()),
      writeErr: (text) => io.err(text.trimEnd()),
      outputError: () => {},
    })
    .exitOverride();
  // As help lists them: first what a newcomer looks for.
  for (const add of [
    addInit,
    addDemo,
    addStatus,
    addTop,
    addExplain,
    addDoctor,
    addPlan,
    addSidecar,
    addVault,
    addInvite,
    addJoin,
    addPeers,
    addRevoke,
    addVaults,
    addFlush,
    addSession,
    addWarm,
    addBundle,
    addGateway,
    addBench,
    addFidelity,
    addVerify,
    addConfig,
    addCerts,
    addService,
    addUninstall,
    addInstall,
    addCompletion,
    addMan,
    addVersion,
  ])
    add(program);
  return program;
}

/** A command without a description is explained by its summary. */
function aboutOf(command: Plain): string {
  const description = command.description();
  if (description !== "") return oneParagraph(description);
  const summary = command.summary();
  return summary === "" ? "" : `${summary.charAt(0).toUpperCase()}${summary.slice(1)}.`;
}

function addVersion(program: Command): void {
  program
    .command("version")
    .summary("show the version")
    .example("tierkv version")
    .does((call) => {
      const version = packageVersion();
      call.print({ version }, [version]);
    });
}
