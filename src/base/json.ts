// Owns parsing of foreign JSON: bad text gives a value, because each caller refuses it with its own error.

/** Returns the value, or undefined if the text is not JSON. */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

/** Returns the fields of an object; null for a list, another value, or bad text. */
export function parseObject(text: string): Record<string, unknown> | null {
  const value = parseJson(text);
  const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
  return isObject ? (value as Record<string, unknown>) : null;
}
