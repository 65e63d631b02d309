// Owns the kinds of values that only commands take: addresses of engines, public keys, beginnings of namespaces, names of sessions.
import type { Kind, Parsed } from "../config/kinds.ts";
import { SESSION_NAME_BYTES_MAX } from "../limits/sessions.ts";

const SAMPLE_URL = "http://127.0.0.1:8000";

/** `refuse`: what is wrong with a text, and the fix; null: nothing. `read`: how it is taken then. */
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

/** Without slashes at its end, and without `/v1`, which clients of the OpenAI API are given with it. */
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
