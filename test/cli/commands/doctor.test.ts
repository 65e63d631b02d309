// Owns the proof that `tierkv doctor` says plainly whether a restore helps, and what is missing when it cannot say.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import type { VaultBench } from "../../../src/cli/bench/bench-vault.ts";
import { describe as verdict, outlook, slowOnes } from "../../../src/cli/commands/doctor.ts";
import { describeAllowance } from "../../../src/cli/doctor/allowance.ts";
import type { Allowance } from "../../../src/cli/doctor/allowance.ts";
import { nextStep } from "../../../src/cli/doctor/next-step.ts";
import type { Forecast } from "../../../src/sidecar/restore/forecast.ts";
import type { SidecarStatus } from "../../../src/sidecar/status.ts";
import { runInside } from "../../support/command-line.ts";
import { FakeEngine } from "../../support/shim-client.ts";
import { openSidecar, testDirectory } from "../../support/sidecars.ts";
import { openClient, openVault, until } from "../../support/vaults.ts";

/** 1 ms per 100 tokens, 10 kB per token. */
const FORECAST: Forecast[] = [1000, 10_000].map((tokens) => {
  const wireBytes = { kv: tokens * 1e4, ssm: 0 };
  const isBeyond = tokens > 1000;
  const costs = { computeMs: tokens / 100, restMs: 2, loadMs: 1, seenMs: null, asideMs: null };
  return { tokens, isBeyond, ...costs, wireBytes, slots: tokens / 100 };
});
const link = (bytesPerS: number): Parameters<typeof outlook>[1] => {
  return { kv: { bytesPerS, savesPerS: null, questionMs: 1 } };
};

test("a fast link helps, a slow one does not, and both are said", () => {
  const fast = outlook(FORECAST, link(10e9));
  expect(fast.map(({ gain }) => gain! > 1)).toEqual([true, true]);
  // Asked, fetched, loaded, and the rest computed.
  expect(fast.map(({ restoreMs }) => restoreMs)).toEqual([1 + 1 + 1 + 2, 1 + 10 + 1 + 2]);
  expect(verdict("m", fast).at(-1)).toContain("from the shortest here (1000 tokens) on");
  const slower = fast.map((one) => ({ ...one, gain: one.tokens > 1000 ? 2 : 0.5 }));
  expect(verdict("m", slower).at(-1)).toContain("from about 10000 tokens on");
  expect(verdict("m", outlook(FORECAST, link(1e6))).at(-1)).toContain("will not help here");
});

test("prompts longer than any that was computed are marked", () => {
  const [, , seen, beyond, note] = verdict("m", outlook(FORECAST, link(10e9)));
  expect(seen).toMatch(/^ {2}1000 {2}/);
  expect(beyond).toMatch(/^ {2}10000 \* /);
  expect(note).toContain("has computed no prompt of that length since it started");
  const all = FORECAST.map((one) => ({ ...one, isBeyond: false }));
  expect(verdict("m", outlook(all, link(10e9))).join("\n")).not.toContain("*");
});

test("a forecast without the engine's copying says so", () => {
  const said = (all: Forecast[]): string => verdict("m", outlook(all, link(10e9))).join("\n");
  expect(said(FORECAST)).not.toContain("without the engine's copying");
  const unloaded = FORECAST.map((one) => ({ ...one, loadMs: null }));
  expect(said(unloaded)).toContain("without the engine's copying, because it has restored fewer");
});

test("what restores took replaces the links' rates in a forecast, and is named", () => {
  const said = (all: Forecast[]): string => verdict("m", outlook(all, link(10e9))).join("\n");
  const seen = FORECAST.map((one) => ({ ...one, seenMs: 7 }));
  expect(outlook(seen, link(10e9)).map(({ restoreMs }) => restoreMs)).toEqual([7 + 2, 7 + 2]);
  expect(said(seen)).toContain("calculated from this engine's restores so far");
  expect(said(FORECAST)).toContain("at least this long, calculated from the links as measured now");
});

test("what lies beside look-up, load and computing is a part of both times, once answers have shown it", () => {
  const said = (all: Forecast[]): string => verdict("m", outlook(all, link(10e9))).join("\n");
  const shown = FORECAST.map((one) => ({ ...one, seenMs: 7, asideMs: 5 }));
  const [first] = outlook(shown, link(10e9));
  expect([first!.computeMs, first!.restoreMs]).toEqual([10 + 5, 7 + 2 + 5]);
  expect(said(shown)).toContain("both: from a request's arrival at the engine's server");
  expect(said(FORECAST)).toContain(
    "both: without the time that a request takes between the engine's server",
  );
});

test("the last line says what to do next", () => {
  const prompts = outlook(FORECAST, link(10e9));
  const well = { findings: [], isEngineHost: true, hasSidecar: true, engines: [prompts] };
  const seen = outlook(
    FORECAST.map((one) => ({ ...one, seenMs: 7 })),
    link(10e9),
  );
  const problem = { code: "x", severity: "problem" as const, text: "x" };
  expect(nextStep({ ...well, findings: [problem] })).toContain("mend the first PROBLEM");
  expect(nextStep({ ...well, isEngineHost: false })).toContain("on an engine's machine");
  expect(nextStep({ ...well, hasSidecar: false })).toContain("start vLLM");
  expect(nextStep({ ...well, engines: [] })).toContain("start vLLM");
  expect(nextStep({ ...well, engines: [[]] })).toContain("start a vault");
  const unknown = outlook([{ ...FORECAST[0]!, computeMs: null }], link(1e9));
  expect(nextStep({ ...well, engines: [unknown] })).toContain("answer a few prompts");
  expect(nextStep({ ...well, engines: [outlook(FORECAST, link(1e6))] })).toContain("tierkv plan");
  expect(nextStep(well)).toContain("send prompts again");
  expect(nextStep({ ...well, engines: [seen] })).toContain("tierkv top");
  expect(nextStep({ ...well, engines: [], isUntold: true })).toContain("tierkv top");
});

test("a vault that brings a tenth of what the others of its pool do is named with its weight, until it has it", () => {
  const restore = (median: number): VaultBench["restore"] =>
    ({ wire: { median } }) as VaultBench["restore"];
  const rates = { "a:1": 100e6, "b:1": 90e6, "c:1": 11e6 };
  const vaults = Object.entries(rates).map(([address, rate]) => {
    return { target: "kv_cold", address, restore: restore(rate) };
  });
  const said = (weight: number): string[] => {
    const kv = [{ address: "c:1", seen: { weight } }];
    return slowOnes(vaults, { sidecar: { vaults: { kv, ssm: [] } } as unknown as SidecarStatus });
  };
  expect(said(1)).toEqual([expect.stringMatching(/^c:1 brings 11\.0 % .* weight c:1 0\.1$/)]);
  expect(said(0.1)).toEqual([]);
  const bucket = { target: "kv_cold", address: "s3://b/p", restore: restore(1e6) };
  expect(slowOnes([vaults[0]!, bucket], NOTHING)).toEqual([]);
  expect(slowOnes([{ target: "ssm_cold", address: "d:1", restore: restore(1) }], NOTHING)).toEqual(
    [],
  );
});

const NOTHING = { sidecar: null };

test("without a vault, or without a computed prompt, there is no verdict", () => {
  // The shortest prompt may have nothing to restore, and says nothing of the others.
  const short = { ...FORECAST[0]!, tokens: 16, wireBytes: { kv: 0, ssm: 0 } };
  for (const forecast of [FORECAST, [short, ...FORECAST]]) {
    expect(verdict("m", outlook(forecast, {}))).toEqual(["m: its vaults could not be measured."]);
  }
  const [unknown] = verdict("m", outlook([{ ...FORECAST[0]!, computeMs: null }], link(1e9)));
  expect(unknown).toContain("has not seen it compute a prompt yet");
  const [never] = verdict(
    "m",
    outlook([{ ...FORECAST[0]!, computeMs: null }], link(1e9)),
    "sglang",
  );
  expect(never).toContain("SGLang reports no times of computing");
});

test("a real sidecar and vault are measured, and a slow engine is told that it gains", async () => {
  const vault = await openVault();
  const sidecar = await openSidecar({ vaults: { kv: openClient(vault), ssm: null } });
  const engine = await FakeEngine.start(sidecar.socketPath, { maxModelLen: 3000 });
  const steps = [64, 128].map((tokens) => [tokens, (tokens * tokens) / 2, tokens * 100_000]);
  // The last 128 tokens of a prompt of 1100.
  steps.push([128, (1100 ** 2 - 972 ** 2) / 2, 12_800_000]);
  engine.workers[0]!.send({ t: "counts", counters: { told: 1 }, steps });
  await until(() => sidecar.counters.get("shim_told") > 0, "the steps to be heard");
  const config = join(testDirectory(), "tierkv.toml");
  const cluster = `[cluster]\nkv_cold = "${vault.address}"\n`;
  writeFileSync(config, `${cluster}[sidecar]\nsocket = "${sidecar.socketPath}"\n`);
  const { exitCode, stdout } = await runInside(["doctor", "--json", "--config", config]);
  const { helps, engines } = JSON.parse(stdout) as {
    helps: boolean;
    engines: {
      prompts: { tokens: number; isBeyond: boolean; computeMs: number; restoreMs: number }[];
      allows: Allowance;
    }[];
  };
  expect([exitCode, helps]).toEqual([0, true]);
  const { prompts, allows } = engines[0]!;
  expect(prompts.map(({ tokens, isBeyond }) => [tokens, isBeyond])).toEqual([
    [128, false],
    [256, false],
    [512, false],
    [1024, false],
    [2048, true],
    [3000, true],
  ]);
  // Steps of up to 128 tokens at 0.1 ms a token: what lies behind the last boundary of 16 is computed all the same.
  const [, , , { computeMs, restMs } = { computeMs: 0, restMs: 0 }] =
    sidecar.status().engines[0]!.forecast;
  expect(computeMs).toBeGreaterThan(80);
  expect(restMs).toBeGreaterThan(1);
  expect(restMs).toBeLessThan(computeMs! / 10);
  expect(prompts[3]!.restoreMs).toBeGreaterThan(restMs!);
  // 187 blocks of 2 layers of 4 KiB; a step of 512 tokens has 32.
  const { arena } = sidecar.status().engines[0]!;
  const promptBytes = 187 * 8192;
  expect(allows).toMatchObject({ promptTokens: 3000, promptBytes, stepBytes: 32 * 8192 });
  expect(allows).toMatchObject({ arenaBytes: arena!.bytes, wholeTokens: 3000 });
  expect(allows.prompts).toBeCloseTo((arena!.slotCount - arena!.saveSlots) / 187, 6);
  expect(allows.saveS).toBeGreaterThan(0);
  const text = describeAllowance(allows).join("\n");
  expect(text).toMatch(
    /a prompt of 3000 tokens is 1.5 MB in the engine: saved in \d.* m?s, as its blocks go to the vaults at .*\/s, measured now/,
  );
  expect(text).toMatch(/shared memory of 16.8 MB holds \d+\.\d of them, beside \d.* for saves/);
  const few = { ...allows, prompts: 0.5, wholeTokens: 1500, saveS: null };
  expect(describeAllowance(few)[0]).toBe("a prompt of 3000 tokens is 1.5 MB in the engine");
  expect(describeAllowance(few)[1]).toContain("restores the first 1500 tokens of them");
});
