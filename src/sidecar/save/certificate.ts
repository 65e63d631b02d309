// Owns the form of a certificate: a measurement of what a lossy codec changes in a model's answers, and what it is about.
import { parseObject } from "../../base/json.ts";
import { CERTIFIED_PROMPTS_MIN } from "../../base/limits/codec.ts";

/** Subject of a certificate, which says nothing of anything else. */
export interface Subject {
  /** The engine's name of its weights. */
  weights: string;
  /** Id and version of the codec. */
  codec: number;
  version: number;
  /** Version of the order in which records hold K and V. */
  order: number;
}

export interface Certificate extends Subject {
  /** Name of the model, for people. */
  model: string;
  /** Element type of the KV of the engine that was measured. */
  dtype: string;
  prompts: number;
  /** Tokens compared. */
  tokens: number;
  /** Kullback-Leibler divergence of restored answers from the own cache's, nats a token. */
  kldMean: number;
  kldWorst: number;
  /** Mean divergence of two exact runs in the same measurement: computed, and from the own cache. */
  floor: number;
  /** Day of the measurement, such as 2026-11-28. */
  date: string;
  command: string;
}

/** The divergence that the codec adds to what two exact runs differ by, nats a token. */
export function excessOf({ kldMean, floor }: Pick<Certificate, "kldMean" | "floor">): number {
  return Math.max(0, kldMean - floor);
}

const TEXTS = ["weights", "model", "dtype", "date", "command"] as const;
const COUNTS = ["codec", "version", "order", "prompts", "tokens"] as const;
const AMOUNTS = ["kldMean", "kldWorst", "floor"] as const;

/** Returns the certificate in a file's text, or the reason why it is none. */
export function readCertificate(text: string): Certificate | string {
  const found = parseObject(text);
  if (found === null) return "it is no JSON object";
  const wrong = (name: string, expected: string): string =>
    `${name} = ${JSON.stringify(found[name])}: expected ${expected}`;
  for (const name of TEXTS) if (typeof found[name] !== "string") return wrong(name, "a text");
  for (const name of COUNTS)
    if (!Number.isSafeInteger(found[name]) || Number(found[name]) < 1)
      return wrong(name, "a whole number from 1 on");
  for (const name of AMOUNTS) {
    const value = found[name];
    if (typeof value !== "number" || !Number.isFinite(value) || value < 0)
      return wrong(name, "a number from 0 on");
  }
  const certificate = found as unknown as Certificate;
  return certificate.prompts < CERTIFIED_PROMPTS_MIN
    ? wrong("prompts", `${CERTIFIED_PROMPTS_MIN} at least`)
    : certificate;
}

export function isAbout(certificate: Certificate, subject: Subject): boolean {
  return (["weights", "codec", "version", "order"] as const).every(
    (name) => certificate[name] === subject[name],
  );
}
