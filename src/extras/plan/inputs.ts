// Owns the inputs of `tierkv plan`: sizes, links, and a trace that is read line by line.
import { createReadStream, readFileSync, statSync } from "node:fs";
import type { ReadStream } from "node:fs";
import { basename, join, resolve } from "node:path";
import { TierkvError } from "../../base/errors.ts";
import { VALKEY_REPLICAS_MAX } from "../../base/limits/cold.ts";
import { VAULT_BYTES_MAX, VAULT_BYTES_MIN } from "../../base/limits/general.ts";
import {
  PLAN_CONFIG_BYTES_MAX,
  PLAN_LINE_CHARS_MAX,
  PLAN_LINKS_MAX,
} from "../../base/limits/tools.ts";
import { showBytes } from "../../base/text.ts";
import { bytes } from "../../config/kinds.ts";
import { Forecaster } from "./forecast.ts";
import type { ForecastOptions, TraceForecast } from "./forecast.ts";
import { readModel } from "./model.ts";
import type { ModelShape, Reading } from "./model.ts";
import { readRequest } from "./trace.ts";

const GBIT = 1e9;
const LINKS_DEFAULT = "1,10";

const usage = (reason: string): TierkvError => new TierkvError("USAGE", { reason });

/** Parses the bytes of an option such as `--vault 24GB`. */
export function sizeOf(option: string, text: string, least: number = VAULT_BYTES_MIN): number {
  const parsed = bytes(least, VAULT_BYTES_MAX).parse(text, option);
  if ("value" in parsed) return parsed.value;
  throw usage(`${option} ${text.slice(0, 40)}: expected a size like 24GB or 24GiB`);
}

/** Parses a whole number above 0. */
export function countOf(option: string, text: string): number {
  const value = Number(text);
  if (Number.isSafeInteger(value) && value > 0) return value;
  throw usage(`${option} ${text.slice(0, 40)}: expected a whole number above 0`);
}

/** Parses the replicas of each primary. */
export function replicasOf(text: string): number {
  const value = Number(text);
  if (/^\d+$/.test(text) && value <= VALKEY_REPLICAS_MAX) return value;
  const most = `from 0 to ${VALKEY_REPLICAS_MAX}`;
  throw usage(`--replicas ${text.slice(0, 40)}: expected a whole number ${most}`);
}

/** Parses Gb/s like `1,10` into bits per second. */
export function linksOf(text: string = LINKS_DEFAULT): number[] {
  const rates = text.split(",").map(Number);
  const isGood = rates.every((rate) => rate > 0 && Number.isFinite(rate));
  if (isGood && rates.length <= PLAN_LINKS_MAX) return rates.map((rate) => rate * GBIT);
  const most = `at most ${PLAN_LINKS_MAX} rates`;
  throw usage(`--links ${text.slice(0, 40)}: expected rates in Gb/s such as 1,10, and ${most}`);
}

export const showLink = (bitsPerS: number): string => `${bitsPerS / GBIT} Gb/s`;

/** `model`: a config.json, or its folder. */
export function shapeAt(model: string, reading: Reading): ModelShape {
  const isFolder = statSync(model, { throwIfNoEntry: false })?.isDirectory() === true;
  const path = isFolder ? join(model, "config.json") : model;
  const named = isFolder ? { ...reading, name: basename(resolve(model)) } : reading;
  return readModel(readConfig(path), path, named);
}

function readConfig(path: string): string {
  const fix = "name the config.json of a Hugging Face model";
  const size = statSync(path, { throwIfNoEntry: false })?.size;
  if (size === undefined) {
    throw new TierkvError("CONFIG_UNREADABLE", { path, reason: "it does not exist", fix });
  }
  if (size > PLAN_CONFIG_BYTES_MAX) {
    throw new TierkvError("CONFIG_UNREADABLE", { path, reason: `it has ${size} bytes`, fix });
  }
  return readFileSync(path, "utf8");
}

/** Receives how far a trace has been read, in bytes. */
export interface TraceProgress {
  at(done: number, all: number, what: string): void;
}

/** Forecasts from the trace at `path`. */
export async function forecastTrace(
  path: string,
  options: ForecastOptions,
  progress: TraceProgress,
): Promise<TraceForecast> {
  const forecaster = new Forecaster(options);
  let number = 0;
  for await (const line of linesOf(path, progress)) {
    number += 1;
    const request = readRequest(line, `${path}:${number}`);
    if (request !== null) forecaster.take(request);
  }
  const result = forecaster.result();
  if (result.requests > 0) return result;
  throw unreadable(path, "it has no request");
}

function unreadable(path: string, reason: string): TierkvError {
  const fix = "name a trace of lines {timestamp, input_length, output_length, hash_ids}";
  return new TierkvError("CONFIG_UNREADABLE", { path, reason, fix });
}

async function* linesOf(path: string, progress: TraceProgress): AsyncGenerator<string> {
  const all = statSync(path, { throwIfNoEntry: false })?.size;
  if (all === undefined) throw unreadable(path, "it does not exist");
  let rest = "";
  const file: ReadStream = createReadStream(path, { encoding: "utf8" });
  for await (const chunk of file as AsyncIterable<string>) {
    const lines = (rest + chunk).split("\n");
    rest = lines.pop() ?? "";
    if (rest.length > PLAN_LINE_CHARS_MAX) {
      throw unreadable(path, `a line has more than ${PLAN_LINE_CHARS_MAX} characters`);
    }
    yield* lines;
    progress.at(
      file.bytesRead,
      all,
      `${showBytes(file.bytesRead)} of ${showBytes(all)} of the trace`,
    );
  }
  yield rest;
}
