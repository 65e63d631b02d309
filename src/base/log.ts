// Owns logging: pino to stderr, coloured lines on a terminal unless NO_COLOR is set, else JSON; never payload bytes or stack traces.
import { createRequire } from "node:module";
import { pino } from "pino";
import type { DestinationStream, Logger as PinoLogger, LoggerOptions } from "pino";
import type { PinoPretty } from "pino-pretty";
import { toTierkvError } from "./errors.ts";
import { LogBudget } from "./log-budget.ts";
import { printable } from "./printable.ts";
import { shipped } from "./shipped.ts";

/** Defined by packaging/bundle.js: the file with pino-pretty, because a package has no folder of other packages. */
declare const TIERKV_PRETTY: string | undefined;

export type Logger = PinoLogger;
export const LOG_LEVELS = ["debug", "info", "warn", "error", "silent"] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

export interface LogOptions {
  level: LogLevel;
  /** Whether to print lines for people instead of JSON; default: stderr is a terminal. */
  tty?: boolean;
  /** Sink of lines; default: stderr, written synchronously, because the last line before an exit must not be lost. */
  destination?: DestinationStream;
}

const STDERR = 2;
/** Pino's number of the debug level. */
const DEBUG = 20;

/** Returns a logger whose lines carry `name` (the process's role). */
export function createLogger(name: string, options: LogOptions): Logger {
  const settings: LoggerOptions = {
    name,
    level: options.level,
    base: { name, pid: process.pid },
    timestamp: pino.stdTimeFunctions.isoTime,
    formatters: { level: (label) => ({ level: label }), log: safely },
    serializers: { err: describeError },
    hooks: { logMethod: withinBudget(new LogBudget()) },
  };
  const isTty = options.tty ?? process.stderr.isTTY;
  return pino(
    settings,
    isTty ? prettyStream(options.destination) : plainStream(options.destination),
  );
}

/** Returns a line as a log of that name has it, for a program's last error. */
export function fatalLine(name: string, fields: object, msg: string): string {
  const lines: string[] = [];
  const destination = { write: (line: string) => void lines.push(line) };
  createLogger(name, { level: "error", tty: false, destination }).fatal(fields, msg);
  return lines.join("").trimEnd();
}

/** Says nothing: for commands, which say by themselves what is wrong. */
export const silent: Logger = pino({ level: "silent" }, { write: () => {} });

function plainStream(destination: DestinationStream | undefined): DestinationStream {
  return destination ?? pino.destination({ dest: STDERR, sync: true });
}

function prettyStream(destination: DestinationStream | undefined): DestinationStream {
  // Loaded for a terminal alone, because every process would keep its megabytes.
  const load = createRequire(import.meta.url);
  const place = typeof TIERKV_PRETTY === "string" ? shipped(TIERKV_PRETTY) : "pino-pretty";
  const { PinoPretty: pretty } = load(place) as { PinoPretty: typeof PinoPretty };
  return pretty({
    destination: destination === undefined ? STDERR : destination,
    sync: true,
    ignore: "pid,name",
    messageFormat: "{name}: {msg}",
    translateTime: "SYS:HH:MM:ss.l",
    singleLine: true,
    colorize: destination === undefined && isColourWanted(),
  });
}

/** https://no-color.org: any value but the empty one disables colour. */
function isColourWanted(): boolean {
  return (process.env["NO_COLOR"] ?? "") === "";
}

type LogMethod = NonNullable<NonNullable<LoggerOptions["hooks"]>["logMethod"]>;

/** Debug lines are never limited, because an operator asked for them. */
function withinBudget(budget: LogBudget): LogMethod {
  return function limit(args, method, level) {
    const [first, second] = args as [unknown, unknown];
    const fields = typeof first === "object" && first !== null ? first : {};
    const message = String(typeof first === "string" ? first : second);
    const suppressed = level > DEBUG ? budget.spend(message) : 0;
    if (suppressed === null) return;
    method.apply(this, suppressed === 0 ? args : [{ ...fields, suppressed }, message]);
  };
}

/** Errors are logged as a code and a line, without the stack. */
function describeError(error: unknown): { code: string; message: string } {
  const { code, message } = toTierkvError(error);
  return { code, message };
}

/** Hides bytes, because a logged buffer is a mistake that must not leak; escapes texts, because peers may send them. */
function safely(fields: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).map(([key, value]) => [key, safe(value)]));
}

function safe(value: unknown): unknown {
  if (ArrayBuffer.isView(value)) return `<${value.byteLength} bytes>`;
  if (typeof value === "string") return printable(value);
  if (Array.isArray(value)) return value.map(safe);
  if (typeof value !== "object" || value === null) return value;
  const isPlain = Object.getPrototypeOf(value) === Object.prototype;
  return isPlain ? safely(value as Record<string, unknown>) : value;
}
