// Owns what `--engine` may be: an address of HTTP, because a host and a port alone look like one.
import { TierkvError } from "../errors.ts";

/** Without slashes at its end. Throws USAGE. */
export function engineUrl(text: string): string {
  const { protocol } = URL.canParse(text) ? new URL(text) : { protocol: "" };
  if (protocol === "http:" || protocol === "https:") return text.replace(/\/+$/, "");
  const shown = text.slice(0, 100);
  const host = shown.replace(/^\w*:?\/\//, "");
  const reason = `--engine ${shown}: not an address of HTTP; write http://${host || "127.0.0.1:8000"}`;
  throw new TierkvError("USAGE", { reason });
}
