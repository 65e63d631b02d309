// Owns the parts that many keys share: defaults and how they are shown, files, and keys of every process.
import { PATH_BYTES_MAX } from "../base/limits/general.ts";
import type { Field } from "./field.ts";
import { boolean, httpUrl, path } from "./kinds.ts";

type Default<T> = Pick<Field<T>, "fallback" | "fallbackText" | "example">;

/** `example`: another useful value. */
export function byDefault<const T extends string | number | boolean>(
  value: T,
  example: T = value,
): Default<T> {
  const fallbackText = `\`${JSON.stringify(value)}\``;
  return { fallback: () => value, fallbackText, example: JSON.stringify(example) };
}

/** A key that may be left out. */
export function optional(fallbackText: string, example: string): Default<null> {
  return { fallback: () => null, fallbackText, example };
}

/** A list that may be left out. */
export function emptyList(fallbackText: string, example: string): Default<readonly never[]> {
  return { fallback: () => [], fallbackText, example };
}

/** A file that may be left out. */
export function file(doc: string, fallbackText: string, example: string): Field<string | null> {
  return { kind: path(PATH_BYTES_MAX), doc, ...optional(fallbackText, example) };
}

export const METRICS_LAN: Field<boolean> = {
  kind: boolean,
  doc: "Whether `metrics_listen` may be an address that other machines reach.",
  ...byDefault(false),
};

/** The key of a process that makes these spans. */
export function otlpEndpoint(process: string, spans: string): Field<string | null> {
  return {
    kind: httpUrl,
    doc: `URL of the OpenTelemetry collector for the ${process}'s traces: OTLP as JSON over HTTP, to \`/v1/traces\` below it. ${spans}, without prompts or keys.`,
    fallback: (env) => env["OTEL_EXPORTER_OTLP_ENDPOINT"] ?? null,
    fallbackText: "the environment variable `OTEL_EXPORTER_OTLP_ENDPOINT`; without it, no traces",
    example: '"http://127.0.0.1:4318"',
  };
}
