// Owns the escaping of text for a terminal: control characters and changes of direction become \u escapes.

/** Also line separators and changes of direction. */
const CONTROLS = /[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}]/gu;
const HARMLESS = "\t\n";

/** Returns the text escaped; inside a JSON string it keeps its meaning. */
export function printable(text: string): string {
  return text.replace(CONTROLS, (control) =>
    HARMLESS.includes(control)
      ? control
      : `\\u${control.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}
