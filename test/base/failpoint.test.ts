// Owns the proof that failpoints do what they are told, only where nobody else suffers, and nothing at all unless they are armed.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { isTierkvError } from "../../src/base/errors.ts";
import { armedFailpoints, armFailpoints, failpoint } from "../../src/base/failpoint.ts";
import type { Circumstances } from "../../src/base/failpoint.ts";
import { createLogger } from "../../src/base/log.ts";
import { lastLine, runProgram } from "../support/command-line.ts";
import { testDirectory } from "../support/sidecars.ts";

const lines: string[] = [];
const logger = createLogger("test", {
  level: "warn",
  tty: false,
  destination: { write: (line) => void lines.push(line) },
});

function arm(text: string | undefined, changes: Partial<Circumstances> = {}): string | null {
  try {
    armFailpoints({ text, isOnNetwork: false, logger, ...changes });
    return null;
  } catch (error) {
    return isTierkvError(error) ? `${error.code} ${error.message}` : "another error";
  }
}

const outcome = async (name: Parameters<typeof failpoint>[0]): Promise<string> =>
  await Promise.resolve(failpoint(name)).then(
    () => "passed",
    (error: unknown) => (isTierkvError(error) ? error.code : "another error"),
  );

test("unarmed, none of them does anything", async () => {
  expect(arm(undefined)).toBe(null);
  expect(arm("")).toBe(null);
  expect(armedFailpoints()).toBe(0);
  expect(await outcome("sidecar.fetch.begun")).toBe("passed");
  expect(lines).toEqual([]);
});

test.each([
  ["sidecar.fetch.begon=return", 'there is no failpoint "sidecar.fetch.begon"'],
  ["sidecar.fetch.begun", '"" is no action'],
  ["sidecar.fetch.begun=fail", '"fail" is no action'],
  ["sidecar.fetch.begun=3*return->sleep", '"sleep" is no action'],
  ["sidecar.fetch.begun=return(3)", '"return(3)" is no action'],
  ["sidecar.fetch.begun=1234567*off", '"1234567*off" is no action'],
])("%s is refused with what to do", (text, reason) => {
  expect(arm(text)).toMatch(/^FAILPOINTS TIERKV_FAILPOINTS = .*; unset TIERKV_FAILPOINTS, or see/);
  expect(arm(text)).toContain(reason);
  expect(armedFailpoints()).toBe(0);
});

test("where other machines would suffer none is armed", () => {
  expect(arm("sidecar.fetch.begun=return", { isOnNetwork: true })).toContain("other machines");
  expect(armedFailpoints()).toBe(0);
});

test("terms are taken in order; those of the shim are left to it", async () => {
  const text = "sidecar.fetch.begun=1*off->2*return->1*sleep(1); sidecar.fetch.placed=1*return";
  expect(arm(`${text};shim.load.copy=return`)).toBe(null);
  expect(armedFailpoints()).toBe(2);
  expect(lines.join("")).toContain("FAILPOINTS ARE ARMED");
  const outcomes: string[] = [];
  for (let turn = 0; turn < 5; turn += 1) outcomes.push(await outcome("sidecar.fetch.begun"));
  expect(outcomes).toEqual(["passed", "FAILPOINT", "FAILPOINT", "passed", "passed"]);
  expect(await outcome("sidecar.fetch.placed")).toBe("FAILPOINT");
  expect(await outcome("sidecar.fetch.placed")).toBe("passed");
  expect(await outcome("sidecar.save.taken")).toBe("passed");
  expect(lines.filter((line) => line.includes('"a failpoint acts"'))).toHaveLength(4);
});

test("a sidecar on the network does not start with one", async () => {
  const config = join(testDirectory(), "tierkv.toml");
  writeFileSync(config, '[cluster]\nrole = "inference"\nkv_cold = "10.9.8.7:50051"\n');
  const env = { TIERKV_FAILPOINTS: "sidecar.fetch.begun=return" };
  const { exitCode, stderr } = await runProgram(["sidecar", "--config", config], { env });
  expect(lastLine(stderr)).toContain("(FAILPOINTS)");
  expect(exitCode).toBe(2);
});
