// Owns the kinds of values that only options take: engine addresses, public keys, namespace prefixes, session names.
import { SESSION_NAME_BYTES_MAX } from "../../base/limits/sessions.ts";
import type { Kind, Parsed } from "../../config/kinds.ts";

const SAMPLE_URL = "http://127.0.0.1:8000";

/** `refuse`: returns a text's defect and the fix; null: it is fit. `read`: normalizes a fit text. */
function text(
  describe: string,
  refuse: (raw: string, key: string) => { reason: string; fix: string } | null,
  read: (raw: string) => string = (raw) => raw,
): Kind<string> {
  return {
    describe,
    parse(raw, key): Parsed<string> {
      const problem = refuse(String(raw), key);
      return problem === null ? { value: read(String(raw)) } : { problem };
    },
  };
}

/** Normalized without trailing slashes and `/v1`, because clients of the OpenAI API are given it with `/v1`. */
export const engineUrl: Kind<string> = text(
  "an address",
  (raw, key) => {
    const isUrl = /^https?:\/\/[^?#]*$/.test(raw) && URL.canParse(raw);
    return isUrl ? null : { reason: "no http address", fix: `write ${key} ${SAMPLE_URL}` };
  },
  (raw) => raw.replace(/\/+$/, "").replace(/\/v1$/, ""),
);

export const publicKey: Kind<string> = text(
  "64 hexadecimal digits",
  (raw) =>
    /^[\da-f]{64}$/i.test(raw)
      ? null
      : { reason: "not 64 hexadecimal digits", fix: "give the key as its maker printed it" },
  (raw) => raw.toLowerCase(),
);

export const namespaceBegin: Kind<string> = text(
  "1 to 64 hexadecimal digits",
  (raw) =>
    /^[\da-f]{1,64}$/i.test(raw)
      ? null
      : { reason: "not 1 to 64 hexadecimal digits", fix: "give it as its maker printed it" },
  (raw) => raw.toLowerCase(),
);

export const sessionName: Kind<string> = text(`1 to ${SESSION_NAME_BYTES_MAX} bytes`, (raw) => {
  const bytes = Buffer.byteLength(raw);
  if (bytes > 0 && bytes <= SESSION_NAME_BYTES_MAX && !/\p{C}/u.test(raw)) return null;
  const reason = `not 1 to ${SESSION_NAME_BYTES_MAX} printable bytes`;
  return { reason, fix: "give it as requests do; `tierkv session ls` has those that are known" };
});
