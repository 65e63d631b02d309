// Owns what a command says and asks: results to stdout, everything else to stderr, questions only to a person.
import { createInterface } from "node:readline/promises";

/** The outside of the command line; a test hands in its own. */
export interface Io {
  /** One line of a result. */
  out(line: string): void;
  /** One line that is not a result. */
  err(line: string): void;
  /** How far it is: in place of the line before, on a terminal only; gone when anything else is said. */
  progress(line: string): void;
  /** Whether there is a person to ask. */
  isInteractive: boolean;
  /** Whether results go to a terminal, where they are read and not kept. */
  isTerminal: boolean;
  /** Standard input to its end, or its first `charsMax` and one more. */
  readAll(charsMax: number): Promise<string>;
  /** Asks on stderr; the answer without white space around it, empty at end of input. */
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
      process.stdout.write(`${line}\n`);
    },
    err(line) {
      clear();
      process.stderr.write(`${line}\n`);
    },
    progress(line) {
      showProgress(line);
      isProgressShown = true;
    },
    isInteractive: process.stdin.isTTY && process.stderr.isTTY,
    isTerminal: process.stdout.isTTY,
    readAll,
    ask: (question) => askPerson(question, process.stdin, process.stderr),
    env: process.env,
  };
}

const LINE_START = "\r";
const CLEAR_LINE = "\u001B[K";

function showProgress(line: string): void {
  const { stderr } = process;
  if (!stderr.isTTY) return;
  // A line that wraps cannot be taken back.
  stderr.write(`${LINE_START}${line.slice(0, Math.max(0, stderr.columns - 1))}${CLEAR_LINE}`);
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
  // Whoever interrupts a question gives no answer to it.
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
