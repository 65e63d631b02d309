// Owns running the command line in a test: inside this process with a fake environment, or as the real program.
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll } from "vitest";
import { runCommandLine } from "../../src/cli/program.ts";
import type { Io } from "../../src/cli/shell/io.ts";

/** Lines of `tierkv flush` about sidecars without blocks; a sidecar that has not reached the vault yet has none. */
export const NO_COPIES =
  /: 0 blocks dropped from arenas \(0 B\), 0 saves$|^a flush does not empty an engine's own cache/;

export interface Outcome {
  exitCode: number | null;
  stdout: string;
  stderr: string;
}

export interface Outside {
  env?: Record<string, string>;
  /** Answer of the person at the terminal; without it there is no terminal. */
  answer?: string;
  /** Text on standard input. */
  input?: string;
  /** Whether results go to a terminal. */
  isTerminal?: boolean;
  /** Columns of the terminal; left out: results go elsewhere. */
  columns?: number;
}

/** Runs one command line inside this process. */
export async function runInside(
  argv: readonly string[],
  outside: Outside = {},
): Promise<Outcome & { asked: string[] }> {
  const out: string[] = [];
  const err: string[] = [];
  const asked: string[] = [];
  const io: Io = {
    out: (line) => void out.push(`${line}\n`),
    err: (line) => void err.push(`${line}\n`),
    progress: () => {},
    isInteractive: outside.answer !== undefined,
    isTerminal: outside.isTerminal ?? false,
    columns: outside.columns ?? Infinity,
    readAll: (charsMax) => Promise.resolve((outside.input ?? "").slice(0, charsMax + 1)),
    ask(question): Promise<string> {
      asked.push(question);
      return Promise.resolve(outside.answer ?? "");
    },
    env: outside.env ?? {},
  };
  const exitCode = await runCommandLine(argv, io);
  return { exitCode, stdout: out.join(""), stderr: err.join(""), asked };
}

const BIN = fileURLToPath(new URL("../../bin/tierkv.js", import.meta.url));
/** State folder of programs without their own, because the user's may hold flushes, weights and tokens of earlier runs. */
const STATE = mkdtempSync(join(tmpdir(), "tierkv-state-"));
// Removed here, because vitest ends its processes without their exit handlers.
afterAll(() => rmSync(STATE, { recursive: true, force: true }));

export interface ProgramOptions {
  env?: Record<string, string>;
  /** Command prefix for special circumstances. */
  under?: readonly string[];
  /** Path of another copy of the program. */
  bin?: string;
}

/** The real program, started. `stderr` and `stdout` grow while it runs. */
export class Program {
  readonly process: ChildProcess;
  readonly #chunks: Record<"stdout" | "stderr", string[]> = { stdout: [], stderr: [] };

  constructor(argv: readonly string[], { env = {}, under = [], bin = BIN }: ProgramOptions = {}) {
    const { PATH = "", HOME = "" } = process.env;
    const [command = "", ...args] = [...under, process.execPath, bin, ...argv];
    this.process = spawn(command, args, {
      env: { PATH, HOME, ...("HOME" in env ? {} : { XDG_STATE_HOME: STATE }), ...env },
      stdio: ["ignore", "pipe", "pipe"],
    });
    for (const name of ["stdout", "stderr"] as const) {
      this.process[name]
        ?.setEncoding("utf8")
        .on("data", (text: string) => this.#chunks[name].push(text));
    }
  }

  get stdout(): string {
    return this.#chunks.stdout.join("");
  }

  get stderr(): string {
    return this.#chunks.stderr.join("");
  }

  /** The first line of stdout as JSON; rejects when the program ends without one. */
  async firstResult(): Promise<Record<string, unknown>> {
    while (!this.stdout.includes("\n")) {
      if (this.process.exitCode !== null)
        throw new Error(`ended with ${this.process.exitCode}: ${this.stderr}`);
      await Promise.race([once(this.process.stdout!, "data"), once(this.process, "close")]);
    }
    return JSON.parse(this.stdout.split("\n", 1)[0] ?? "") as Record<string, unknown>;
  }

  async ended(): Promise<Outcome> {
    if (this.process.exitCode === null && this.process.signalCode === null)
      await once(this.process, "close");
    return { exitCode: this.process.exitCode, stdout: this.stdout, stderr: this.stderr };
  }

  signal(name: NodeJS.Signals): void {
    this.process.kill(name);
  }
}

/** Time after which a program is killed, so that its test fails and nothing stays behind. */
const PROGRAM_MS_MAX = 40_000;

/** Runs the real program to its end. */
export async function runProgram(
  argv: readonly string[],
  options: ProgramOptions = {},
): Promise<Outcome> {
  const program = new Program(argv, options);
  const timer = setTimeout(() => program.signal("SIGKILL"), PROGRAM_MS_MAX);
  try {
    return await program.ended();
  } finally {
    clearTimeout(timer);
  }
}

/** Returns what a program wrote to stderr without its lines of progress, which a slow machine adds. */
export function withoutProgress(stderr: string): string {
  return stderr.replaceAll(/^(?:[^\n]+: \d+ %(?:, .+ left)?|waiting for [^\n]+)\n/gm, "");
}

/** Returns the last line of a command; of a program that logs, its fatal line in the form of a command's. */
export function lastLine(stderr: string): string {
  const line = stderr.trimEnd().split("\n").at(-1) ?? "";
  if (!line.startsWith("{")) return line;
  const { level, msg, code } = JSON.parse(line) as Record<string, string>;
  if (level !== "fatal") throw new Error(`the last line is of level ${level}: ${msg}`);
  return `tierkv: ${msg} (${code})`;
}

const REFUSAL_MS_MAX = 1000;
/** Attempts, of which the quickest counts, because the machine may be busy. */
const ATTEMPTS = 3;
/** Time that a refusal may take, in starts of an empty program; on a quiet machine four are less than a second. */
const STARTS = 4;

/** Runs a program that must end at once. `ms` is its time, `msMax` a second, or more on a slow machine. */
export async function quickest(
  run: () => Promise<Outcome>,
): Promise<Outcome & { ms: number; msMax: number }> {
  let ms = Infinity;
  let msMax = REFUSAL_MS_MAX;
  for (let attempt = 1; ; attempt += 1) {
    const startMs = performance.now();
    const outcome = await run();
    ms = Math.min(ms, performance.now() - startMs);
    if (ms < msMax || attempt === ATTEMPTS) return { ...outcome, ms, msMax };
    const plainMs = performance.now();
    await runProgram(["--version"]);
    msMax = Math.max(msMax, STARTS * (performance.now() - plainMs));
  }
}
