// Owns the proof of certificates: INT8 only for the very weights, codec and order that were measured, decided once in an engine's life.
import { chmodSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { showFidelity } from "../../../src/control/form.ts";
import type { Certificate } from "../../../src/sidecar/save/certificate.ts";
import { readCertificate } from "../../../src/sidecar/save/certificate.ts";
import { readCertificates, writeCertificate } from "../../../src/sidecar/save/certificates.ts";
import { CERTIFIED } from "../../../src/sidecar/save/certified.ts";
import { codecId, LOSSY } from "../../../src/sidecar/save/codecs.ts";
import { judge } from "../../../src/sidecar/save/fidelity.ts";
import type { FidelityWhy } from "../../../src/sidecar/save/fidelity.ts";
import { certificateOf, identify, ORDER } from "../../support/certificates.ts";
import { FakeEngine } from "../../support/shim-client.ts";
import { openSidecar, testDirectory } from "../../support/sidecars.ts";

const WEIGHTS = "files:test";
const ID = codecId(LOSSY.name);

test.each<[what: string, of: Partial<Certificate>, why: FidelityWhy]>([
  ["these weights", {}, "certified"],
  ["other weights", { weights: "files:other" }, "uncertified"],
  ["these weights changed in place", { weights: `${WEIGHTS}+5eed` }, "uncertified"],
  ["another codec", { codec: ID + 1 }, "other_codec"],
  ["another version of the codec", { version: LOSSY.version + 1 }, "other_codec"],
  ["another order of bytes", { order: ORDER + 1 }, "other_order"],
  ["a divergence beyond the bound", { kldMean: 1.1e-4 }, "beyond"],
  ["a divergence that two exact runs have, too", { kldMean: 5.5e-4, floor: 5e-4 }, "certified"],
  ["more than two exact runs differ by", { kldMean: 7e-4, floor: 5e-4 }, "beyond"],
])("a certificate of %s", (_what, of, why) => {
  const identity = { weights: WEIGHTS, order: ORDER };
  expect(judge(identity, [certificateOf(of)], 1e-4).why).toBe(why);
  // Another certificate beside it does not hide the fitting one.
  const both = [certificateOf(of), certificateOf()];
  expect(judge(identity, both, 1e-4).why).toBe(why === "beyond" ? "beyond" : "certified");
});

test("an engine whose order of bytes is not proven is exact, whatever a certificate says", () => {
  const found = judge({ weights: WEIGHTS, order: 0 }, [certificateOf({ order: 1 })], 1e-4);
  expect(found.why).toBe("unknown_order");
});

test.each<[enabled: boolean | undefined, weights: string, fidelity: number, said: RegExp]>([
  [undefined, WEIGHTS, ID, /^INT8 \(.*\), certified on 2026-11-28 with KLD 2\.1e-5$/],
  [undefined, "files:other", 0, /^exact: not certified/],
  [true, "files:other", ID, /as configured, no certificate is asked for$/],
  [false, WEIGHTS, 0, /^exact: as configured$/],
])(
  "[turbo_quant] enabled = %s: an engine with weights %s is told %i",
  async (enabled, weights, fidelity, said) => {
    const certificates = testDirectory();
    writeCertificate(certificates, certificateOf());
    const set = enabled === undefined ? {} : { enabled };
    const sidecar = await openSidecar({ kv: "auto", certificates, ...set });
    const engine = new FakeEngine(sidecar.socketPath);
    await identify(engine, weights, fidelity);
    const [status] = sidecar.status().engines;
    expect(showFidelity(status!.fidelity)).toMatch(said);
    expect(status!.fidelity.identity).toEqual({ weights, order: ORDER });
  },
);

test("an engine that has not identified itself stays exact", async () => {
  const sidecar = await openSidecar({ kv: "auto" });
  const engine = new FakeEngine(sidecar.socketPath);
  await engine.scheduler.wait("welcome");
  expect(sidecar.status().engines[0]!.fidelity).toMatchObject({ codec: null, why: "unidentified" });
});

test("weights that change in place lose the certificate, and are told so before they are named", async () => {
  const certificates = testDirectory();
  writeCertificate(certificates, certificateOf());
  const sidecar = await openSidecar({ kv: "auto", certificates });
  const engine = new FakeEngine(sidecar.socketPath);
  await identify(engine, WEIGHTS, ID);
  expect(engine.scheduler.got("fidelity")[0]).toMatchObject({ weights: WEIGHTS, otherwise: 0 });
  await identify(engine, `${WEIGHTS}+5eed`, 0);
});

test("a certificate comes back as it was written, in place of an earlier one of its subject", () => {
  const folder = testDirectory();
  writeCertificate(folder, certificateOf({ kldMean: 1e-5 }));
  writeCertificate(folder, certificateOf());
  writeCertificate(folder, certificateOf({ weights: "files:other" }));
  const found = readCertificates(folder, silent);
  expect(found).toHaveLength(2);
  expect(found).toContainEqual(certificateOf());
  expect(readCertificates(join(folder, "nowhere"), silent)).toEqual([]);
});

const silent = { warn: (): void => {} };

test.each<[change: object, said: string]>([
  [{ weights: 7 }, "weights = 7: expected a text"],
  [{ order: 0 }, "order = 0: expected a whole number from 1 on"],
  [{ kldMean: -1 }, "kldMean = -1: expected a number from 0 on"],
  [{ kldMean: undefined }, "kldMean = undefined: expected a number from 0 on"],
  [{ prompts: 2 }, "prompts = 2: expected 16 at least"],
])("a file with %j is no certificate, and is named", (change, said) => {
  const folder = testDirectory();
  const path = join(folder, "bad.json");
  writeFileSync(path, JSON.stringify({ ...certificateOf(), ...change }), { mode: 0o600 });
  const told: object[] = [];
  const logger = { warn: (fields: object) => void told.push(fields) };
  expect(readCertificates(folder, logger as never)).toEqual([]);
  expect(told).toMatchObject([{ path, reason: said }]);
});

test("a certificate that others may write counts for nothing", () => {
  const folder = testDirectory();
  const path = writeCertificate(folder, certificateOf());
  chmodSync(path, 0o666);
  expect(readCertificates(folder, silent)).toEqual([]);
});

test("the shipped certificates are whole", () => {
  for (const certificate of CERTIFIED)
    expect(readCertificate(JSON.stringify(certificate))).toEqual(certificate);
});
