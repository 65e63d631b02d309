// Owns the text form of numbers and tables.

/** Formats bytes with a decimal unit: 24.0 GB. */
export function showBytes(bytes: number): string {
  const names = ["B", "kB", "MB", "GB", "TB"];
  let value = bytes;
  let step = 0;
  while (value >= 1000 && step < names.length - 1) {
    value /= 1000;
    step += 1;
  }
  const digits = step === 0 || value >= 100 ? 0 : 1;
  return `${value.toFixed(digits)} ${names[step] ?? ""}`;
}

/** Decimal digits of durations below `below` units; a value that rounds up to it takes the next row. */
const DURATIONS: readonly { below: number; unitMs: number; digits: number; unit: string }[] = [
  { below: 10, unitMs: 1, digits: 2, unit: "ms" },
  { below: 100, unitMs: 1, digits: 1, unit: "ms" },
  { below: 1000, unitMs: 1, digits: 0, unit: "ms" },
  { below: 10, unitMs: 1000, digits: 1, unit: "s" },
  { below: 100, unitMs: 1000, digits: 0, unit: "s" },
  { below: 10, unitMs: 60_000, digits: 1, unit: "min" },
  { below: 100, unitMs: 60_000, digits: 0, unit: "min" },
  { below: 100, unitMs: 3_600_000, digits: 1, unit: "h" },
  { below: 10, unitMs: 86_400_000, digits: 1, unit: "days" },
  { below: 1000, unitMs: 86_400_000, digits: 0, unit: "days" },
];

/** Formats a duration: 0.51 ms, 12.3 ms, 450 ms, 4.1 s, 68 min, 2.5 h, 12 days. */
export function showMs(ms: number): string {
  for (const { below, unitMs, digits, unit } of DURATIONS) {
    const text = (ms / unitMs).toFixed(digits);
    if (Number(text) < below) return `${text} ${unit}`;
  }
  return "years";
}

/** Formats a share of 1 as per cent. */
export function showShare(share: number): string {
  return `${(share * 100).toFixed(1)} %`;
}

export function showRate(bytesPerS: number): string {
  return `${showBytes(bytesPerS)}/s`;
}

/** Text for a missing value. */
export const NONE = "-";

export function orNone<T>(value: T | null, show: (value: T) => string): string {
  return value === null ? NONE : show(value);
}

/** Formats a vault's records: of those on disk, some or none are in memory as well. `onDisk`: null without a disk. */
export function showRecords(inMemory: number | null, onDisk: number | null): string {
  if (inMemory === null) return NONE;
  return onDisk === null ? String(inMemory) : `${inMemory}, ${onDisk} on disk`;
}

/** Formats a table, or where it is wider than `columns` each row as lines of its own: its first two cells, then the rest by name. */
export function tableWithin(columns: number, rows: readonly (readonly string[])[]): string[] {
  const lines = table(rows);
  if (lines.every((line) => line.length <= columns)) return lines;
  const [head = [], ...others] = rows;
  return others.flatMap((row) => {
    const parts = row
      .slice(2)
      .flatMap((cell, at) => (cell === NONE ? [] : [`${head[at + 2] ?? ""} ${cell}`]));
    return [row.slice(0, 2).join("  "), ...wrapped(parts, columns, "  ")];
  });
}

function wrapped(parts: readonly string[], columns: number, indent: string): string[] {
  const lines: string[] = [];
  for (const part of parts) {
    const last = lines.at(-1);
    if (last !== undefined && last.length + 2 + part.length <= columns)
      lines[lines.length - 1] = `${last}, ${part}`;
    else lines.push(indent + part);
  }
  return lines;
}

/** Aligns columns to their widest cell, two spaces apart, with `indent` before each line. */
export function table(rows: readonly (readonly string[])[], indent = ""): string[] {
  const widths = (rows[0] ?? []).map((_cell, column) =>
    Math.max(...rows.map((row) => (row[column] ?? "").length)),
  );
  return rows.map((row) => {
    const cells = row.map((cell, column) => cell.padEnd(widths[column] ?? 0));
    return (indent + cells.join("  ")).trimEnd();
  });
}

/** The remedy for a place that a connection reaches, and that does not answer. */
export const SILENT_FIX =
  "check the process that listens there, and firewalls and proxies on the way";

/** How to have a sidecar read its configuration again. */
export const RESTART_SIDECAR =
  "restart its service, or run `pkill -f 'sidecar --exit-when-idle'` if an engine started it";
