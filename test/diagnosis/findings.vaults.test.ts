// Owns the proof of findings about vaults that the sidecar does not reach, or has not heard of.
import { expect, test, vi } from "vitest";
import type * as PoolLimits from "../../src/base/limits/pool.ts";
import { loadConfig } from "../../src/config/load.ts";
import { findings } from "../../src/diagnosis/findings.ts";
import type { Finding } from "../../src/diagnosis/findings.ts";
import type { Seen } from "../../src/diagnosis/inspect.ts";
import type { SidecarStatus } from "../../src/sidecar/status.ts";
import { openClosedVault, shown } from "../support/closed-vaults.ts";
import { configOf, openSetUp } from "../support/set-ups.ts";
import { openSidecar } from "../support/sidecars.ts";
import { openClient } from "../support/vaults.ts";

/** Sidecar, vaults and command share one loop here, and on a busy machine a look takes longer than in processes of their own. */
vi.mock("../../src/base/limits/pool.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof PoolLimits>()),
  VAULTS_SEEN_MS: 60_000,
}));

const SOON = { timeout: 60_000 };

test("a vault that lets the sidecar not in is told with the reason and the fix, not as one to be started", async () => {
  const closed = await openClosedVault();
  const kv = openClient(closed, "kv", { security: shown(closed, "x".repeat(40)) });
  const { status } = await openSidecar({ vaults: { kv, ssm: null } });
  const failing = async (): Promise<void> => {
    await kv.hello(1000).catch(() => {});
    expect(status().vaults.kv[0]?.state).toBe("down");
  };
  await vi.waitFor(failing, SOON);
  const { look } = await openSetUp();
  const { config, ...seen } = await look();
  const said = (sidecar: Seen["sidecar"], list: string): Finding | undefined => {
    const { cluster } = loadConfig(configOf(list, config.sidecar.socket), {});
    return findings({ ...seen, config: { ...config, cluster }, targets: [], sidecar })[0];
  };
  const { address } = status().vaults.kv[0]!;
  const found = said(status(), address);
  expect(found).toMatchObject({ code: "unreachable", severity: "problem" });
  expect(found?.text).toMatch(
    /^kv vault at 127\.0\.0\.1:\d+ does not let this machine in: .*`tierkv join`.*; it is not used until it answers again$/,
  );
  const earlier = status();
  delete earlier.vaults.kv[0]?.trouble;
  expect(said(earlier, address)?.text).toMatch(
    /^kv vault at \S+ does not answer; it is not used until it answers again: start `tierkv vault` there, or check the network to it$/,
  );
  expect(said(status(), "10.0.0.9:50051")?.text).toMatch(
    /the configuration no longer names it, .*: restart its service, or run `pkill/,
  );
});

test("what to do about a vault that was reached, and does not answer, is not to start one", async () => {
  const { look } = await openSetUp();
  const seen = await look();
  const [kv] = seen.sidecar!.vaults.kv;
  const told = (trouble: string): string => {
    const row = { ...kv!, state: "down", trouble };
    const sidecar = { ...seen.sidecar!, vaults: { kv: [row], ssm: [] } };
    return findings({ ...seen, targets: [], sidecar })
      .map(({ text }) => text)
      .join("\n");
  };
  const late = "kv vault at x did not answer Stats within 2000 ms";
  expect(told(late)).toContain(
    `${late}; it is not used until it answers again: start its machine if that is off; else check the process`,
  );
  expect(told("x refused")).toContain(
    "not used until it answers again: start `tierkv vault` there",
  );
});

test("a vault whose first cable is cut is a note where the sidecar uses another", async () => {
  const { look } = await openSetUp();
  const seen = await look();
  const down = { ...seen.targets[1]!, reachable: false, error: "no answer: no connection" };
  const found = (more: object): [string, string][] =>
    findings({ ...seen, targets: [{ ...down, ...more }] }).map(({ code, severity }) => [
      code,
      severity,
    ]);
  expect(found({})).toEqual([["unreachable", "problem"]]);
  expect(found({ isElsewhere: true })).toEqual([["path_cut", "note"]]);
});

test("a command that resolves no names says that the sidecar knows no vault of a list", async () => {
  const { look } = await openSetUp();
  const { names: _names, ...seen } = await look();
  const { cluster } = loadConfig(configOf("pool:127.0.0.1:1", seen.config.sidecar.socket), {});
  const found = (kv: SidecarStatus["vaults"]["kv"]): string[] => {
    const sidecar = { ...seen.sidecar!, vaults: { kv, ssm: [] } };
    const config = { ...seen.config, cluster };
    return findings({ ...seen, config, targets: [], sidecar }).map(({ text }) => text);
  };
  expect(found([])).toContainEqual(
    "the sidecar knows no vault of pool:127.0.0.1:1: no list of vaults has come, and `tierkv status` says why",
  );
  expect(found(seen.sidecar!.vaults.kv).join()).not.toContain("no list of vaults");
});

test("a vault that answers this command and not the sidecar is a problem, with the sidecar's reason", async () => {
  const { look } = await openSetUp();
  const seen = await look();
  const [kv] = seen.sidecar!.vaults.kv;
  const found = (state: string): string[] => {
    const row = { ...kv!, state, trouble: state === "up" ? "" : "no trust in its certificate" };
    const sidecar = { ...seen.sidecar!, vaults: { kv: [row], ssm: [row] } };
    return findings({ ...seen, sidecar }).map(({ code, text }) => `${code}: ${text}`);
  };
  expect(seen.targets.some(({ address }) => address === kv!.address)).toBe(true);
  expect(found("up")).toEqual([]);
  expect(found("down")).toEqual([
    expect.stringMatching(
      /^unreachable: \S+ answers this command, and does not answer the sidecar: no trust in its certificate; the sidecar tries again by itself; if that lasts .*, restart its service/,
    ),
  ]);
});
