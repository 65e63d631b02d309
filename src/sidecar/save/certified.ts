// Owns the certificates that tierKV ships: rows as `tierkv fidelity --model DIR --text FILE --json` prints them (`certificate`).
import type { Certificate } from "./certificate.ts";

export const CERTIFIED: readonly Certificate[] = [];
