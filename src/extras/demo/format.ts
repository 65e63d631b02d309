// Owns the format of the demo's numbers and table.

/** Bytes with a decimal unit: 122.9 MB. */
export function showBytes(bytes: number): string {
  if (bytes < 1e3) return `${bytes} B`;
  const [scale, unit] = bytes < 1e6 ? [1e3, "kB"] : bytes < 1e9 ? [1e6, "MB"] : [1e9, "GB"];
  return `${(bytes / scale).toFixed(1)} ${unit}`;
}

/** A duration with two digits that matter: 0.22 s, 14.9 s. */
export function showSeconds(ms: number): string {
  const seconds = ms / 1000;
  return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
}

/** Whole numbers with a comma every three digits: 9,984. */
export function showCount(count: number): string {
  return Math.round(count).toLocaleString("en-US");
}

/** How many times faster than `baseMs`: 61x, 1.0x. */
export function showRatio(baseMs: number, ms: number): string {
  const ratio = baseMs / ms;
  return `${ratio.toFixed(ratio < 10 ? 1 : 0)}x`;
}

/** Columns as wide as their widest cell; the first is left-aligned, the others right-aligned, a rule below the head. */
export function table([head = [], ...rows]: readonly (readonly string[])[]): string[] {
  const widths = head.map((name, at) =>
    Math.max(name.length, ...rows.map((row) => row[at]?.length ?? 0)),
  );
  const rule = widths.map((width) => "-".repeat(width));
  return [head, rule, ...rows].map((row) =>
    widths
      .map((width, at) => (at === 0 ? row[at]?.padEnd(width) : row[at]?.padStart(width)))
      .join("   ")
      .trimEnd(),
  );
}
