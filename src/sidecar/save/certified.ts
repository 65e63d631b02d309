// Owns the certificates that tierKV ships: rows as `tierkv fidelity --model DIR --text FILE --json` prints them (`certificate`).
import type { Certificate } from "./certificate.ts";

export const CERTIFIED: readonly Certificate[] = [
  {
    model: "gemma3-270m",
    weights: "files:bd881e45e1cb14ea447e0d0aa7ec0494c0eba5b667b330681eb4ae259b1f3a22",
    order: 1,
    dtype: "f32",
    codec: 4,
    version: 1,
    prompts: 16,
    tokens: 256,
    kldMean: 1.498e-5,
    kldWorst: 3.676e-4,
    floor: 8.4e-12,
    date: "2026-11-29",
    command: "tierkv fidelity --model gemma3-270m --text text.txt",
  },
];
