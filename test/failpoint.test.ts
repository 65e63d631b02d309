// Owns the proof that failpoints do what they are told, only where nobody else suffers, and nothing at all unless they are armed.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { isTierkvError } from "../src/errors.ts";
import { exposition } from "../src/exposition/text.ts";
import { vaultFamilies } from "../src/exposition/vault.ts";
import { armedFailpoints, armFailpoints, failpoint, failpointNow } from "../src/failpoint.ts";
import type { Circumstances } from "../src/failpoint.ts";
import { createLogger } from "../src/log.ts";
import { runProgram } from "./support/command-line.ts";
import { testDirectory } from "./support/sidecars.ts";
import { openVault } from "./support/vaults.ts";

const lines: string[] = [];
const logger = createLogger("test", {
  level: "warn",
  tty: false,
  destination: { write: (line) => void lines.push(line) },
});

function arm(text: string | undefined, changes: Partial<Circumstances> = {}): string | null {
  try {
    armFailpoints({ process: "vault", text, isOnNetwork: false, logger, ...changes });
    return null;
  } catch (error) {
    return isTierkvError(error) ? `${error.code} ${error.message}` : "another error";
  }
}

const outcome = async (name: Parameters<typeof failpoint>[0]): Promise<string> =>
  await failpoint(name).then(
    () => "passed",
    (error: unknown) => (isTierkvError(error) ? error.code : "another error"),
  );

test("unarmed, none of them does anything", async () => {
  expect(arm(undefined)).toBe(null);
  expect(arm("")).toBe(null);
  expect(armedFailpoints()).toBe(0);
  expect(await outcome("vault.fetch.pinned")).toBe("passed");
  expect(() => failpointNow("vault.store.reserved")).not.toThrow();
  expect(lines).toEqual([]);
});

test.each([
  ["vault.fetch.pined=return", 'there is no failpoint "vault.fetch.pined"'],
  ["vault.fetch.pinned", '"" is no action'],
  ["vault.fetch.pinned=fail", '"fail" is no action'],
  ["vault.fetch.pinned=3*return->sleep", '"sleep" is no action'],
  ["vault.fetch.pinned=return(3)", '"return(3)" is no action'],
  ["vault.fetch.pinned=1234567*off", '"1234567*off" is no action'],
])("%s is refused with what to do", (text, reason) => {
  expect(arm(text)).toMatch(/^FAILPOINTS TIERKV_FAILPOINTS = .*; unset TIERKV_FAILPOINTS, or see/);
  expect(arm(text)).toContain(reason);
  expect(armedFailpoints()).toBe(0);
});

test("where other machines would suffer none is armed", () => {
  expect(arm("vault.fetch.pinned=return", { isOnNetwork: true })).toContain("other machines");
  expect(armedFailpoints()).toBe(0);
});

test("terms are taken in order; those of other processes are left to them", async () => {
  const text = "vault.fetch.pinned=1*off->2*return->1*sleep(1); vault.store.reserved=1*return";
  expect(arm(`${text};sidecar.save.taken=return;shim.load.copy=return`)).toBe(null);
  expect(armedFailpoints()).toBe(2);
  expect(lines.join("")).toContain("FAILPOINTS ARE ARMED");
  const outcomes: string[] = [];
  for (let turn = 0; turn < 5; turn += 1) outcomes.push(await outcome("vault.fetch.pinned"));
  expect(outcomes).toEqual(["passed", "FAILPOINT", "FAILPOINT", "passed", "passed"]);
  expect(() => failpointNow("vault.store.reserved")).toThrow("made to fail");
  expect(() => failpointNow("vault.store.reserved")).not.toThrow();
  expect(await outcome("sidecar.save.taken")).toBe("passed");
  expect(lines.filter((line) => line.includes('"a failpoint acts"'))).toHaveLength(4);
});

test("a vault shows how many are armed", async () => {
  arm("vault.lookup.found=off");
  const vault = await openVault();
  expect(exposition(vaultFamilies(vault.stats()))).toContain("\ntierkv_vault_failpoints 1\n");
});

test.each([
  [
    "vault",
    '[cluster]\nrole = "kv_cold"\n[vault]\nlisten = "10.9.8.7:50051"\ninsecure_lan = true\n',
  ],
  ["sidecar", '[cluster]\nrole = "inference"\nkv_cold = "10.9.8.7:50051"\n'],
])("a %s on the network does not start with one", async (command, text) => {
  const config = join(testDirectory(), "tierkv.toml");
  writeFileSync(config, text);
  const env = { TIERKV_FAILPOINTS: "vault.lookup.found=return" };
  const { exitCode, stderr } = await runProgram([command, "--config", config], { env });
  expect(stderr).toContain("(FAILPOINTS)");
  expect(exitCode).toBe(2);
});
