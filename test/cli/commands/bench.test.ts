// Owns the proof that `tierkv bench` measures what a vault has, keeps nothing there, and says what it could not measure.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { ItemStatus } from "../../../src/base/block.ts";
import { LANES_DEFAULT } from "../../../src/base/limits/general.ts";
import type { VaultBench } from "../../../src/cli/bench/bench-vault.ts";
import { failures, refusalBy } from "../../../src/cli/bench/failed.ts";
import { runInside } from "../../support/command-line.ts";
import { MIB, openVault, until } from "../../support/vaults.ts";

let dir = "";

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "tierkv-bench-"));
});

afterEach(() => rmSync(dir, { recursive: true }));

function config(text: string): string {
  const path = join(dir, "t.toml");
  writeFileSync(path, text);
  return path;
}

const FEW = ["--bytes", String(16 * MIB), "--rounds", "2"];

async function benchJson(toml: string): Promise<VaultBench[]> {
  const { exitCode, stdout, stderr } = await runInside([
    "bench",
    "--json",
    ...FEW,
    "--config",
    config(toml),
  ]);
  expect(stderr).toBe("");
  const report = JSON.parse(stdout) as { ok: boolean; targets: VaultBench[] };
  expect(report.ok).toBe(exitCode === 0);
  return report.targets;
}

/** What `tierkv status` shows of the vault; null where it did not answer in time. */
async function recordsShown(): Promise<number | null> {
  const { stdout } = await runInside(["status", "--json", "--config", join(dir, "t.toml")]);
  const { targets } = JSON.parse(stdout) as {
    targets: { target: string; records: number | null }[];
  };
  return targets.find(({ target }) => target === "kv_cold")?.records ?? null;
}

const positive = expect.objectContaining({
  median: expect.toSatisfy((ms: unknown) => typeof ms === "number" && ms > 0) as number,
}) as object;

describe("a vault", () => {
  test("with lanes: link, look-ups, records both ways and a prompt; nothing of it stays", async () => {
    const vault = await openVault({ maxBytes: 192 * MIB });
    const [seen] = await benchJson(
      `[turbo_quant]\nenabled = true\n[cluster]\nkv_cold = "${vault.address}"\n`,
    );
    expect(seen).toMatchObject({
      error: null,
      lanes: LANES_DEFAULT,
      codec: "int8-mean-had",
      rounds: 2,
    });
    expect(seen).toMatchObject({ callMs: positive, lookupMs: positive });
    expect(seen?.plain?.from.min).toBeGreaterThan(0);
    expect(seen?.plain?.to.min).toBeGreaterThan(0);
    for (const rate of [seen?.restore, seen?.save]) {
      expect(rate?.ofPlain?.min).toBeGreaterThan(0);
      expect(Number(rate?.pages.median) / Number(rate?.wire.median)).toBeCloseTo(1.91, 2);
    }
    const { tokens, tokenBytes, wireBytes, ms } = seen!.prompt!;
    expect([tokens, tokenBytes]).toEqual([32_768, 147_456]);
    expect((tokens * tokenBytes) / wireBytes).toBeCloseTo(1.91, 2);
    const transferMs = (wireBytes / seen!.restore!.wire.median) * 1e3;
    expect(ms).toBeCloseTo(transferMs + 2 * seen!.lookupMs!.median, 1);
    const blocks = Math.floor(seen!.setBytes! / (36 * 65_536));
    // The round for nothing is one, too.
    expect(vault.counters.get("stored")).toBe(3 * blocks);
    // What left on lanes is counted behind the answer.
    await until(() => vault.counters.get("fetched") >= 3 * blocks, "all fetches are counted");
    expect(vault.counters.get("fetched")).toBe(3 * blocks);
    expect(vault.counters.get("probed_bytes")).toBeGreaterThan(0);
    await until(async () => (await recordsShown()) === 0, "status shows that nothing stays");
  });

  test("of recurrent state moves raw records and reckons with no prompt", async () => {
    const vault = await openVault({ recordClass: "ssm", maxBytes: 192 * MIB });
    const [seen] = await benchJson(`[cluster]\nssm_cold = "${vault.address}"\n`);
    expect(seen).toMatchObject({ error: null, target: "ssm_cold", codec: "raw", prompt: null });
    expect(seen?.restore?.ofPlain?.min).toBeGreaterThan(0);
  });
});

test("people read rates, ratios and the cost of a prompt; a vault that is down is named", async () => {
  const vault = await openVault({ maxBytes: 192 * MIB });
  const path = config(`[cluster]\nkv_cold = "${vault.address}"\nssm_cold = "127.0.0.1:1"\n`);
  const { exitCode, stdout } = await runInside(["bench", ...FEW, "--config", path]);
  expect(exitCode).toBe(1);
  expect(stdout).toContain(`: ${LANES_DEFAULT} lanes; medians of 2 rounds`);
  expect(stdout).toMatch(/plain bytes from the vault +[\d.]+ [kMG]B\/s/);
  expect(stdout).toMatch(
    /restore, raw records, checked and decoded +[\d.]+ [kMG]B\/s.* of plain bytes/,
  );
  expect(stdout).toMatch(/a prompt of 32768 tokens .* is restored in about [\d.]+ (?:m?s|min)/);
  expect(stdout).toMatch(/^ssm vault at 127\.0\.0\.1:1 does not answer/m);
});

test.each([
  [["--rounds", "0"], "--rounds 0: expected a whole number from 1 to 100"],
  [["--tokens", "many"], "--tokens many: expected a whole number from 1"],
  [["--target", "ssm_cold"], "no vault to measure: write [cluster] ssm_cold"],
])("%j is refused", async (argv, text) => {
  const path = config('[cluster]\nkv_cold = "127.0.0.1:1"\n');
  const { exitCode, stderr } = await runInside(["bench", ...argv, "--config", path]);
  expect(exitCode).toBe(2);
  expect(stderr).toContain(text);
});

test("the vault of a sidecar that does not run is told with what starts it, and its address once", async () => {
  const socket = join(dir, "sidecar.sock");
  const { exitCode, stdout } = await runInside([
    "bench",
    "--config",
    config(`[sidecar]\nsocket = "${socket}"\n`),
  ]);
  expect([exitCode, stdout]).toEqual([
    1,
    `kv vault at unix:${socket}.vault does not answer: refused: nobody listens on that socket; an engine with tierKV starts it, or start it with \`tierkv sidecar\`\n`,
  ]);
});

test("a test record that a place refuses is told in words, with what to do", () => {
  expect(refusalBy(ItemStatus.MISSING)).toMatch(/^it was evicted .* fewer --bytes$/);
  expect(refusalBy(ItemStatus.OVER_BUDGET)).toContain("it has no room for it: give it more memory");
  expect(refusalBy(ItemStatus.OVER_BUDGET, { refused_OOM: 1 })).toContain("allkeys-lfu");
  expect(refusalBy(ItemStatus.WRONG_KEY)).toBe("the answer is wrong_key");
});

test("what was not measured is a problem, unless it was meant so", () => {
  const told = (errorCode: VaultBench["errorCode"], draining: string[] = []): string[] =>
    failures(
      [{ target: "cold", address: "a:1", error: "kv vault at a:1 refused", errorCode }],
      new Set(draining),
    ).map(({ severity, text }) => `${severity} ${text}`);
  expect(told("VAULT_REFUSED")).toEqual(["problem not measured: kv vault at a:1 refused"]);
  expect([told("ROLE_MISSING"), told("VAULT_REFUSED", ["a:1"])].flat()).toEqual([
    "note not measured: kv vault at a:1 refused",
    "note not measured: kv vault at a:1 refused",
  ]);
});
