// Owns what a terminal may be given: what controls it, or turns its text round, is shown as \u escapes.

/** Also what separates lines, and what changes their direction. */
const CONTROLS = /[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}]/gu;
const HARMLESS = "\t\n";

/** The same text; inside a JSON string it still means what it did. */
export function printable(text: string): string {
  return text.replace(CONTROLS, (control) =>
    HARMLESS.includes(control)
      ? control
      : `\\u${control.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}
