// Owns a command's input and output: results to stdout, all else to stderr, questions only on a terminal.
import { fstatSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline/promises";
import { isatty } from "node:tty";

/** Asked by number: `process.stdin` would open a pipe, and make it non-blocking for those who share it. */
const STDIN = 0;

/** Input and output of the command line; tests replace it. */
export interface Io {
  /** Name in the log of a program that runs on; its last error has the form of that log. Set when the log is opened. */
  logName?: string | undefined;
  /** Writes one line of a result. */
  out(line: string): void;
  /** Writes one line that is not a result. */
  err(line: string): void;
  /** Shows a progress line on a terminal, over the one before; the next output clears it. False: there is no terminal. */
  progress(line: string): boolean | void;
  /** Whether questions can be asked. */
  isInteractive: boolean;
  /** Whether results go to a terminal. */
  isTerminal: boolean;
  /** Columns of the terminal that results go to; Infinity: they go elsewhere. */
  columns: number;
  /** Reads standard input, `charsMax` + 1 characters at most. */
  readAll(charsMax: number): Promise<string>;
  /** Asks on stderr; resolves to the trimmed answer, empty at the end of input. */
  ask(question: string): Promise<string>;
  env: Readonly<Record<string, string | undefined>>;
}

export function processIo(): Io {
  let isProgressShown = false;
  const clear = (): void => {
    if (isProgressShown) showProgress("");
    isProgressShown = false;
  };
  return {
    out(line) {
      clear();
      writeOut(`${line}\n`);
    },
    err(line) {
      clear();
      process.stderr.write(`${line}\n`);
    },
    progress(line) {
      isProgressShown = showProgress(line);
      return isProgressShown;
    },
    isInteractive: isatty(STDIN) && process.stderr.isTTY,
    isTerminal: process.stdout.isTTY,
    columns: process.stdout.isTTY ? process.stdout.columns : Infinity,
    readAll,
    ask: (question) => askPerson(question, process.stdin, process.stderr),
    env: process.env,
  };
}

/** Writes to a file whole or emits the error, because Node's stream loses short writes, and errors before an exit. */
function writeOut(text: string): void {
  const { stdout } = process;
  if (stdout.isTTY || isPipe(stdout.fd)) {
    stdout.write(text);
    return;
  }
  try {
    writeFileSync(stdout.fd, text);
  } catch (error) {
    stdout.emit("error", error);
  }
}

function isPipe(fd: number): boolean {
  const stats = fstatSync(fd);
  return stats.isFIFO() || stats.isSocket();
}

const LINE_START = "\r";
const CLEAR_LINE = "\u001B[K";

function showProgress(line: string): boolean {
  const { stderr } = process;
  if (!stderr.isTTY) return false;
  // A line that wraps could not be overwritten.
  stderr.write(`${LINE_START}${line.slice(0, Math.max(0, stderr.columns - 1))}${CLEAR_LINE}`);
  return true;
}

export async function askPerson(
  question: string,
  input: NodeJS.ReadableStream,
  output: NodeJS.WritableStream,
): Promise<string> {
  const terminal = createInterface({ input, output });
  const ended = new Promise<string>((resolve) => {
    terminal.once("close", () => resolve(""));
  });
  // An interrupt ends the question without an answer.
  terminal.once("SIGINT", () => {
    terminal.close();
    process.kill(process.pid, "SIGINT");
  });
  try {
    return (await Promise.race([terminal.question(`${question} `), ended])).trim();
  } finally {
    terminal.close();
  }
}

async function readAll(charsMax: number): Promise<string> {
  let text = "";
  process.stdin.setEncoding("utf8");
  for await (const part of process.stdin as AsyncIterable<string>) {
    text += part;
    if (text.length > charsMax) break;
  }
  return text.slice(0, charsMax + 1);
}
