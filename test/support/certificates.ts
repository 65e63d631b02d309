// Owns certificates for tests, and an engine that identifies its weights.
import { expect } from "vitest";
import type { Certificate } from "../../src/sidecar/save/certificate.ts";
import { codecId, LOSSY } from "../../src/sidecar/save/codecs.ts";
import type { FakeEngine } from "./shim-client.ts";

/** Order of bytes that engines of tests report. */
export const ORDER = 1;

export function certificateOf(fields: Partial<Certificate> = {}): Certificate {
  return {
    model: "test/model",
    weights: "files:test",
    codec: codecId(LOSSY.name),
    version: LOSSY.version,
    order: ORDER,
    dtype: "f32",
    prompts: 24,
    tokens: 384,
    kldMean: 2.1e-5,
    kldWorst: 1.3e-3,
    floor: 0,
    date: "2026-11-28",
    command: "tierkv fidelity --model test",
    ...fields,
  };
}

/** Sends an engine's weights, and expects the fidelity that it is told. */
export async function identify(
  engine: FakeEngine,
  weights: string,
  fidelity: number,
  order: number = ORDER,
): Promise<void> {
  const told = engine.scheduler.got("fidelity").length;
  engine.scheduler.send({ t: "weights", weights, order });
  expect(await engine.scheduler.wait("fidelity", told + 1)).toMatchObject({ fidelity });
}
