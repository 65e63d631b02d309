// Owns logging: pino to stderr, coloured lines on a terminal and JSON elsewhere; never payload bytes, never stack traces.
import { pino } from "pino";
import type { DestinationStream, Logger as PinoLogger, LoggerOptions } from "pino";
import { PinoPretty } from "pino-pretty";
import { toTierkvError } from "./errors.ts";

export type Logger = PinoLogger;
export const LOG_LEVELS = ["debug", "info", "warn", "error", "silent"] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

export interface LogOptions {
  level: LogLevel;
  /** Lines for people instead of JSON; default: whether stderr is a terminal. */
  tty?: boolean;
  /** Where lines go; default: stderr, written at once so that the last line before an exit is never lost. */
  destination?: DestinationStream;
}

const STDERR = 2;

/** A logger whose lines carry `name` (the process's role). */
export function createLogger(name: string, options: LogOptions): Logger {
  const settings: LoggerOptions = {
    name,
    level: options.level,
    base: { name, pid: process.pid },
    timestamp: pino.stdTimeFunctions.isoTime,
    formatters: { level: (label) => ({ level: label }), log: withoutBytes },
    serializers: { err: describeError },
  };
  const isTty = options.tty ?? process.stderr.isTTY;
  return pino(
    settings,
    isTty ? prettyStream(options.destination) : plainStream(options.destination),
  );
}

function plainStream(destination: DestinationStream | undefined): DestinationStream {
  return destination ?? pino.destination({ dest: STDERR, sync: true });
}

function prettyStream(destination: DestinationStream | undefined): DestinationStream {
  return PinoPretty({
    destination: destination === undefined ? STDERR : destination,
    sync: true,
    ignore: "pid,name",
    messageFormat: "{name}: {msg}",
    translateTime: "SYS:HH:MM:ss.l",
    singleLine: true,
    colorize: destination === undefined,
  });
}

/** Errors in a log are a code and a line; the stack stays out. */
function describeError(error: unknown): { code: string; message: string } {
  const { code, message } = toTierkvError(error);
  return { code, message };
}

/** A buffer in a log is a mistake that must not spill what it holds. */
function withoutBytes(fields: Record<string, unknown>): Record<string, unknown> {
  const isBytes = (value: unknown): value is ArrayBufferView => ArrayBuffer.isView(value);
  if (!Object.values(fields).some(isBytes)) return fields;
  return Object.fromEntries(
    Object.entries(fields).map(([key, value]) => [
      key,
      isBytes(value) ? `<${value.byteLength} bytes>` : value,
    ]),
  );
}
