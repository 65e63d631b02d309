// Owns the tests of a vault's start and stop: addresses, clear refusals, draining, and cutting off open calls.
import { mkdtempSync, readdirSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test, vi } from "vitest";
import type * as Limits from "../../src/base/limits/general.ts";
import { VAULT_DRAIN_MS } from "../../src/base/limits/general.ts";
import { createLogger } from "../../src/base/log.ts";
import { newVaultCounters } from "../../src/base/metrics.ts";
import type { ListenAddress } from "../../src/vault/access/listener.ts";
import { startVault } from "../../src/vault/server.ts";
import type { RunningVault } from "../../src/vault/server.ts";
import { RawLane } from "../support/raw-calls.ts";
import { keysOf, makeRecords, NAMESPACE } from "../support/records.ts";
import {
  closeAfterTest,
  logger,
  MIB,
  openClient,
  openVault,
  SOON_MS,
  until,
} from "../support/vaults.ts";

vi.mock("../../src/base/limits/general.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  VAULT_DRAIN_MS: 1_500,
}));

function at(host: string, port: number): ListenAddress {
  return { host, port, text: `${host}:${port}` };
}

async function start(
  listen: ListenAddress,
  log = logger,
  insecureLan = false,
): Promise<RunningVault> {
  const config = { listen, maxBytes: 16 * MIB, insecureLan };
  const options = { config, recordClass: "kv" as const, logger: log };
  return closeAfterTest(await startVault({ ...options, counters: newVaultCounters() }));
}

describe("start", () => {
  test("an address in use is refused with the fix", async () => {
    const { address } = await openVault();
    const port = Number(address.split(":")[1]);
    expect(port).toBeGreaterThan(0);
    await expect(start(at("127.0.0.1", port))).rejects.toMatchObject({
      code: "ADDRESS_IN_USE",
      message: `${address} is in use by another process; stop that process or set another [vault] listen`,
    });
  });

  test("an address of another machine is refused with the fix", async () => {
    await expect(start(at("192.0.2.1", 50_051), logger, true)).rejects.toMatchObject({
      code: "LISTEN_FAILED",
      message: expect.stringContaining("[vault] listen") as string,
    });
  });

  test("a Unix socket serves as well", async () => {
    const dir = mkdtempSync(join(tmpdir(), "tierkv-vault-"));
    closeAfterTest({ close: () => rmSync(dir, { recursive: true }) });
    const text = `unix:${join(dir, "vault.sock")}`;
    const vault = await start({ host: "", port: 0, text });
    expect(vault.address).toBe(text);
    const client = openClient(vault);
    expect(await client.put(NAMESPACE, makeRecords(2), SOON_MS)).toEqual([1, 1]);
    expect(statSync(join(dir, "vault.sock")).mode & 0o777).toBe(0o600);
    await expect(start({ host: "", port: 0, text })).rejects.toMatchObject({
      code: "ADDRESS_IN_USE",
      message: expect.stringContaining("set another [vault] listen") as string,
    });
    await vault.close();
    expect(readdirSync(dir)).toEqual([]);
  });

  test("any number of bytes is a budget, an odd one too", async () => {
    const { address } = await openVault({ maxBytes: 600 * MIB + 1 });
    expect(address).toMatch(/:\d+$/);
  });

  test("an address that others can reach is refused without TLS, unless it is wanted so, and then warned about", async () => {
    const lines: string[] = [];
    const write = (line: string): void => void lines.push(line);
    const log = createLogger("test", { level: "warn", tty: false, destination: { write } });
    await start(at("127.0.0.1", 0), log);
    expect(lines).toEqual([]);
    await expect(start(at("0.0.0.0", 0), log)).rejects.toMatchObject({
      code: "INSECURE_LISTEN",
      message: expect.stringContaining("--insecure-lan") as string,
    });
    await start(at("0.0.0.0", 0), log, true);
    expect(lines.join("")).toContain("insecure_lan");
  });
});

describe("stop", () => {
  test("finishes the fetch under way, takes nothing new, and may be asked twice", async () => {
    const vault = await openVault();
    const client = openClient(vault);
    const records = makeRecords(20, { payloadBytes: MIB });
    await client.put(NAMESPACE, records, SOON_MS);
    const fetching = client.take(NAMESPACE, keysOf(records), SOON_MS);
    await until(() => (vault.stats().counters["fetched_bytes"] ?? 0) > MIB, "the first record");
    const closing = [vault.close(), vault.close()];
    expect((await fetching).records.size).toBe(20);
    await Promise.all(closing);
    await expect(openClient(vault).hello(SOON_MS)).rejects.toMatchObject({ code: "VAULT_DOWN" });
    // The port is free again.
    await start(at("127.0.0.1", Number(vault.address.split(":")[1])));
  });

  test("cuts off a call that does not end, within its time", async () => {
    const vault = await openVault();
    const raw = await RawLane.open(vault);
    raw.offer(makeRecords(1));
    await raw.offered();
    const startMs = performance.now();
    await vault.close();
    const tookMs = performance.now() - startMs;
    expect(tookMs).toBeGreaterThan(VAULT_DRAIN_MS - 50);
    await until(() => raw.isOver, "the end of the lane");
  });

  test("with idle clients connected it stops at once", async () => {
    const vault = await openVault();
    await openClient(vault).hello(SOON_MS);
    const startMs = performance.now();
    await vault.close();
    expect(performance.now() - startMs).toBeLessThan(VAULT_DRAIN_MS - 100);
  });
});
