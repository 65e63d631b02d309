// Owns the tests of keeping a machine awake: while its vault is used, no longer, and harmlessly without the tool.
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { createLogger } from "../../../src/base/log.ts";
import { Awake, inhibitorOf } from "../../../src/vault/user/awake.ts";
import type { AwakeOptions } from "../../../src/vault/user/awake.ts";
import { keysOf, makeRecords, NAMESPACE } from "../../support/records.ts";
import { testDirectory } from "../../support/sidecars.ts";
import {
  closeAfterTest,
  logger,
  openClient,
  openVault,
  SOON_MS,
  until,
} from "../../support/vaults.ts";

const records = makeRecords(3, { payloadBytes: 1000 });
const POLL_MS = 5;
const NEVER_MS = 1e9;

function keep(options: Omit<AwakeOptions, "logger" | "idleMs"> & Partial<AwakeOptions>): Awake {
  return closeAfterTest(new Awake({ logger, idleMs: NEVER_MS, pollMs: POLL_MS, ...options }));
}

/** Records when the lock is held, and when its input ended. */
function holder(): { command: NonNullable<AwakeOptions["command"]>; said(): string } {
  const file = join(testDirectory(), "held");
  return {
    command: ["sh", "-c", 'echo held >> "$0"; cat; echo free >> "$0"', file],
    said: () => (existsSync(file) ? readFileSync(file, "utf8").replaceAll("\n", " ") : ""),
  };
}

test("a vault that holds records and is asked for them keeps its machine awake, until it is closed", async () => {
  const vault = await openVault();
  const client = openClient(vault);
  const { command, said } = holder();
  const awake = keep({ vault, command });
  await client.lookup(NAMESPACE, keysOf(records), SOON_MS);
  await new Promise((resolve) => setTimeout(resolve, 20 * POLL_MS));
  // Not held, because the vault has no records.
  expect(awake.isHeld).toBe(false);
  await client.put(NAMESPACE, records, SOON_MS);
  await until(() => said() === "held ", "the lock");
  await awake.close();
  await until(() => said() === "held free ", "the lock to be let go");
});

test("a vault without requests lets the machine sleep, and holds again when asked", async () => {
  const vault = await openVault();
  const client = openClient(vault);
  const { command, said } = holder();
  const awake = keep({ vault, command, idleMs: 50 });
  await client.put(NAMESPACE, records, SOON_MS);
  await until(() => said() === "held free ", "the lock to be let go");
  expect(awake.isHeld).toBe(false);
  await client.lookup(NAMESPACE, keysOf(records), SOON_MS);
  await until(() => said() === "held free held free ", "it to hold again");
});

test("a paused vault does not keep the machine awake", async () => {
  const vault = await openVault();
  const { command, said } = holder();
  let trouble: string | null = null;
  keep({ vault: { ...vault, trouble: () => trouble }, command });
  await openClient(vault).put(NAMESPACE, records, SOON_MS);
  await until(() => said() === "held ", "the lock");
  trouble = "somebody uses this machine";
  await until(() => said() === "held free ", "the lock to be let go");
});

test.each([
  [["tierkv-no-such-tool"], "ENOENT"],
  [["sh", "-c", "exit 3"], "it ended with 3"],
] as const)(
  "without a tool that holds (%j) the machine sleeps as before, and the log says so once",
  async (command, reason) => {
    const vault = await openVault();
    const client = openClient(vault);
    const lines: string[] = [];
    const told = createLogger("test", {
      level: "info",
      tty: false,
      destination: { write: (line: string) => void lines.push(line) },
    });
    const awake = keep({ vault, command, logger: told });
    await client.put(NAMESPACE, records, SOON_MS);
    await until(() => lines.length > 0, "the line");
    await client.lookup(NAMESPACE, keysOf(records), SOON_MS);
    await new Promise((resolve) => setTimeout(resolve, 20 * POLL_MS));
    expect(lines).toHaveLength(1);
    expect(lines[0]).toContain("keep_awake");
    expect(lines[0]).toContain(reason);
    expect(awake.isHeld).toBe(false);
  },
);

test("Linux and macOS hold by their own tools, and both end with their input", () => {
  expect(inhibitorOf("linux")[0]).toBe("systemd-inhibit");
  expect(inhibitorOf("darwin")[0]).toBe("caffeinate");
  for (const platform of ["linux", "darwin"] as const)
    expect(inhibitorOf(platform).at(-1)).toBe("cat");
});
