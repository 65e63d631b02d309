// Owns the full-screen terminal: its size, keys and colours, and the restoring of its state.
import type { Environment } from "../../config/field.ts";

/** Room and colours that a picture may use. */
export interface Look {
  columns: number;
  /** null: unlimited. */
  rows: number | null;
  isColoured: boolean;
}

export interface Terminal {
  look(): Look;
  /** Draws lines from the top; drops the ones that do not fit. */
  show(lines: readonly string[]): void;
  /** Resolves at a key that ends the view. */
  readonly ended: Promise<void>;
  /** Called when the size changes. */
  onResize: () => void;
  close(): void;
}

const ENTER = "\u001B[?1049h\u001B[?25l";
const LEAVE = "\u001B[?25h\u001B[?1049l";
const HOME = "\u001B[H";
const CLEAR_LINE = "\u001B[K";
const CLEAR_BELOW = "\u001B[J";
const ENDING_KEYS: ReadonlySet<string> = new Set(["q", "Q", "\u0003", "\u001B"]);

/** Whether to colour, by https://no-color.org: NO_COLOR unset or empty. */
export function wantsColour(env: Environment): boolean {
  return (env["NO_COLOR"] ?? "") === "" && env["TERM"] !== "dumb";
}

/** Size of a terminal that reports none, or 0 as some without a window do. */
const SIZE_UNKNOWN = { columns: 80, rows: 24 };

function sizeOf({ columns, rows }: NodeJS.WriteStream): { columns: number; rows: number } {
  return columns > 0 && rows > 0 ? { columns, rows } : SIZE_UNKNOWN;
}

/** Returns the look of a picture printed once; a file takes lines of any length. */
export function lookOf(isTerminal: boolean): Look {
  const columns = isTerminal ? sizeOf(process.stdout).columns : Infinity;
  return { columns, rows: null, isColoured: false };
}

/** Takes over the terminal until `close`; standard output must be one. */
export function openTerminal(env: Environment): Terminal {
  const { stdin, stdout } = process;
  const isColoured = wantsColour(env);
  let end: () => void = () => {};
  const ended = new Promise<void>((resolve) => {
    end = resolve;
  });
  const onKey = (key: string): void => {
    if (ENDING_KEYS.has(key)) end();
  };
  const onResize = (): void => terminal.onResize();
  const onSignal = (): void => end();
  if (stdin.isTTY) {
    stdin.setRawMode(true);
    stdin.setEncoding("utf8").on("data", onKey).resume();
  }
  stdout.on("resize", onResize);
  process.on("SIGTERM", onSignal).on("SIGINT", onSignal);
  stdout.write(ENTER);
  const terminal: Terminal = {
    look: () => ({ ...sizeOf(stdout), isColoured }),
    show(lines): void {
      const fitting = lines.slice(0, sizeOf(stdout).rows).map((line) => line + CLEAR_LINE);
      stdout.write(HOME + fitting.join("\r\n") + CLEAR_BELOW);
    },
    ended,
    onResize: () => {},
    close(): void {
      stdout.off("resize", onResize);
      process.off("SIGTERM", onSignal).off("SIGINT", onSignal);
      stdout.write(LEAVE);
      if (!stdin.isTTY) return;
      stdin.off("data", onKey).setRawMode(false).pause();
    },
  };
  return terminal;
}
