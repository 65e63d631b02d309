// Owns how numbers and tables look to people.

/** Bytes with three digits and a decimal unit: 24.0 GB. */
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

export function showMs(ms: number): string {
  return `${ms.toFixed(ms < 10 ? 2 : 1)} ms`;
}

/** A share of 1 as per cent. */
export function showShare(share: number): string {
  return `${(share * 100).toFixed(1)} %`;
}

/** Columns as wide as their widest cell, two spaces apart. */
export function table(rows: readonly (readonly string[])[]): string[] {
  const widths = (rows[0] ?? []).map((_cell, column) =>
    Math.max(...rows.map((row) => (row[column] ?? "").length)),
  );
  return rows.map((row) =>
    row
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join("  ")
      .trimEnd(),
  );
}
