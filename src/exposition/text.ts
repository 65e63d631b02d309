// Owns the text format that Prometheus scrapes, version 0.0.4: families of samples, each told what it is.

export type FamilyKind = "counter" | "gauge" | "histogram";

export interface Sample {
  /** Behind the family's name: `_bucket`, `_sum`, `_count`. */
  suffix?: string;
  labels?: Readonly<Record<string, string>>;
  value: number;
}

export interface Family {
  /** With unit and, of a counter, `_total`. */
  name: string;
  kind: FamilyKind;
  help: string;
  /** The label that tells its samples apart, also while there are none. */
  label?: string;
  samples: readonly Sample[];
}

export const CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8";

/** Of a gauge that both processes have. */
export const FAILPOINTS_HELP = "Failpoints that are armed: more than 0 only in a test.";

/** Families without samples are left out. */
export function exposition(families: readonly Family[]): string {
  return families
    .filter(({ samples }) => samples.length > 0)
    .map(showFamily)
    .join("");
}

function showFamily({ name, kind, help, samples }: Family): string {
  const lines = [`# HELP ${name} ${escapeHelp(help)}`, `# TYPE ${name} ${kind}`];
  for (const { suffix = "", labels = {}, value } of samples) {
    lines.push(`${name}${suffix}${showLabels(labels)} ${value}`);
  }
  return `${lines.join("\n")}\n`;
}

function showLabels(labels: Readonly<Record<string, string>>): string {
  const pairs = Object.entries(labels).map(([name, value]) => `${name}="${escapeLabel(value)}"`);
  return pairs.length === 0 ? "" : `{${pairs.join(",")}}`;
}

const escapeHelp = (text: string): string => text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n");

const escapeLabel = (text: string): string => escapeHelp(text).replaceAll('"', '\\"');

export function gauge(name: string, help: string, value: number | readonly Sample[]): Family {
  return { name, kind: "gauge", help, samples: typeof value === "number" ? [{ value }] : value };
}
