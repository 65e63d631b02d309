// Owns the form of a configuration value in an error: TOML on one line, shortened.

const SHOWN_LENGTH_MAX = 60;

/** `value` as TOML would write it; `undefined` reads as `(default)`. */
export function showValue(value: unknown): string {
  const text = render(value);
  return text.length <= SHOWN_LENGTH_MAX ? text : `${text.slice(0, SHOWN_LENGTH_MAX)}...`;
}

function render(value: unknown): string {
  if (value === undefined) return "(default)";
  if (typeof value === "string") return JSON.stringify(value);
  if (value instanceof Date) return value.toISOString();
  if (Array.isArray(value)) return `[${value.map(render).join(", ")}]`;
  if (isTable(value)) {
    const pairs = Object.entries(value).map(([key, item]) => `${key} = ${render(item)}`);
    return `{ ${pairs.join(", ")} }`;
  }
  const isScalar = ["number", "bigint", "boolean"].includes(typeof value);
  return isScalar ? `${value as number}` : typeof value;
}

/** A TOML table: neither an array nor a date. */
export function isTable(value: unknown): value is Record<string, unknown> {
  return (
    typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Date)
  );
}
