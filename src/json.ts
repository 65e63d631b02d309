// Owns reading JSON that others wrote: what is none is a value like any other, which the reader refuses in its own words.

/** undefined: it is none. */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

/** Of an object, its fields; null: it is none, or a list. */
export function parseObject(text: string): Record<string, unknown> | null {
  const value = parseJson(text);
  const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
  return isObject ? (value as Record<string, unknown>) : null;
}
