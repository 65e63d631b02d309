// Owns the tests of the vault client against dead, silent, restarted, foreign and lying vaults.
import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import { CLIENT_CALLS_MAX } from "../../../src/base/limits/general.ts";
import { VaultClient } from "../../../src/client/vault/vault-client.ts";
import { openFakeVault } from "../../support/fake-vault.ts";
import { Pages } from "../../support/lanes.ts";
import { keysOf, makeRecord, makeRecords, NAMESPACE } from "../../support/records.ts";
import { openRelay, openSilentPeer } from "../../support/tcp-relay.ts";
import { logger, openClient, openVault, SOON_MS, until } from "../../support/vaults.ts";

const KEY = makeRecord(0).key;

function coded(code: string, text = ""): Record<string, unknown> {
  return { name: "TierkvError", code, message: expect.stringContaining(text) };
}

/** Returns the milliseconds until `promise` settles. */
async function timed(promise: Promise<unknown>): Promise<number> {
  const startMs = performance.now();
  await promise.catch(() => {});
  return performance.now() - startMs;
}

describe("a vault that is not there", () => {
  test("nobody listens: VAULT_DOWN, fast, naming the address", async () => {
    const vault = await openVault();
    await vault.close();
    const client = openClient(vault);
    const lookup = client.lookup(NAMESPACE, KEY, SOON_MS);
    await expect(lookup).rejects.toMatchObject(coded("VAULT_DOWN", vault.address));
    expect(await timed(client.lookup(NAMESPACE, KEY, SOON_MS))).toBeLessThan(SOON_MS / 2);
    expect(client.state).toBe("down");
  });

  test("F33 a peer that accepts and says nothing: every call ends at its deadline, then at once", async () => {
    const peer = await openSilentPeer();
    const client = openClient(peer);
    const startMs = performance.now();
    await expect(client.lookup(NAMESPACE, KEY, 200)).rejects.toMatchObject(
      coded("VAULT_DEADLINE", "did not answer Lookup within 200 ms"),
    );
    await expect(client.take(NAMESPACE, KEY, 200)).rejects.toMatchObject(coded("VAULT_DEADLINE"));
    expect(performance.now() - startMs).toBeLessThan(SOON_MS / 2);

    expect(client.state).toBe("down");
    const store = client.put(NAMESPACE, makeRecords(1), SOON_MS);
    await expect(store).rejects.toMatchObject(coded("VAULT_DOWN", "until it answers again"));
    expect(await timed(client.stats(SOON_MS))).toBeLessThan(SOON_MS / 2);
    await expect(client.hello(100)).rejects.toMatchObject(coded("VAULT_DEADLINE", "Hello"));
  });

  test("calls with little time say nothing of a vault that answers: it stays up", async () => {
    const client = openClient(await openVault());
    await client.hello(SOON_MS);
    for (let late = 0; late < 5; late += 1) {
      await expect(client.stats(0)).rejects.toMatchObject(coded("VAULT_DEADLINE"));
    }
    expect(client.state).toBe("up");
  });

  test("a connection that is cut between calls is made again, with a new greeting", async () => {
    const vault = await openVault();
    const relay = await openRelay(vault);
    const client = openClient(relay, "kv", { lanes: 0 });
    await client.lookup(NAMESPACE, KEY, SOON_MS);
    await client.lookup(NAMESPACE, KEY, SOON_MS);
    expect(vault.counters.get("hellos")).toBe(1);
    relay.cut();
    await until(
      () =>
        client.lookup(NAMESPACE, KEY, SOON_MS).then(
          () => true,
          () => false,
        ),
      "a look-up to work again",
    );
    expect(vault.counters.get("hellos")).toBe(2);
  });
});

describe("a vault that restarts", () => {
  test("F2 counts as down after two failures, is probed, comes back up with another epoch", async () => {
    const vault = await openVault();
    const port = Number(vault.address.split(":")[1]);
    const client = openClient(vault);
    await client.put(NAMESPACE, [makeRecord(0)], SOON_MS);
    const before = client.epoch;
    expect(client.state).toBe("up");
    await vault.close();
    for (let call = 0; call < 2; call += 1) {
      await expect(client.lookup(NAMESPACE, KEY, SOON_MS)).rejects.toMatchObject(
        coded("VAULT_DOWN"),
      );
    }
    expect(client.state).toBe("down");

    await openVault({ port });
    await expect(client.lookup(NAMESPACE, KEY, SOON_MS)).rejects.toMatchObject(coded("VAULT_DOWN"));
    const startMs = performance.now();
    await until(() => client.state === "up", "a probe");
    expect(performance.now() - startMs).toBeLessThan(SOON_MS / 2);
    expect([...(await client.lookup(NAMESPACE, KEY, SOON_MS))]).toEqual([0]);
    expect(client.epoch).not.toBe(before);
  });

  test(
    "F1 during a fetch: a coded error, and the vault notices",
    { tags: ["nightly"] },
    async () => {
      const vault = await openVault();
      const relay = await openRelay(vault);
      const client = openClient(relay);
      const records = makeRecords(30, { payloadBytes: 1_000_000 });
      await client.put(NAMESPACE, records, SOON_MS);
      const before = relay.passed();
      const fetching = client.take(NAMESPACE, keysOf(records), SOON_MS);
      const failed = expect(fetching).rejects.toMatchObject(coded("LANES_UNREACHABLE"));
      await until(() => relay.passed() > before + 1_000_000, "the first record");
      await relay.close();
      await failed;
      await until(() => vault.stats().lanes === 0, "the vault to notice");
    },
  );
});

describe("a vault that does not fit", () => {
  test("the other class: VAULT_CLASS with the fix", async () => {
    const client = openClient(await openVault({ recordClass: "ssm" }), "kv");
    await expect(client.hello(SOON_MS)).rejects.toMatchObject(
      coded(
        "VAULT_CLASS",
        "configured as the kv vault but holds ssm records; set [cluster] kv_cold",
      ),
    );
  });

  test.each([
    ["another protocol", { protocol: 9 }, "VERSION_MISMATCH", "protocol 9"],
    ["another record version", { recordVersion: 3 }, "VERSION_MISMATCH", "record version 3"],
    ["no room for keys", { maxKeys: 0 }, "VAULT_BROKEN", "0 keys"],
  ])("%s is refused by name", async (_name, hello, code, text) => {
    const client = openClient(await openFakeVault({}, hello));
    await expect(client.lookup(NAMESPACE, KEY, SOON_MS)).rejects.toMatchObject(coded(code, text));
  });
});

describe("a vault that lies", () => {
  test("a bitmap of the wrong length is refused", async () => {
    const Lookup = (_call: unknown, done: (error: null, reply: unknown) => void): void =>
      done(null, { present: Buffer.alloc(9) });
    const client = openClient(await openFakeVault({ Lookup }));
    await expect(client.lookup(NAMESPACE, KEY, SOON_MS)).rejects.toMatchObject(
      coded("VAULT_BROKEN", "bitmap of 9 bytes for 1 keys"),
    );
  });
});

describe("the client's own bounds", () => {
  test("more calls at once than allowed are refused as busy", async () => {
    const client = openClient(await openSilentPeer());
    const calls = Array.from({ length: CLIENT_CALLS_MAX }, () => client.stats(300));
    await expect(client.stats(300)).rejects.toMatchObject(
      coded("VAULT_BUSY", `the limit is ${CLIENT_CALLS_MAX}`),
    );
    const ends = await Promise.allSettled(calls);
    expect(ends.every(({ status }) => status === "rejected")).toBe(true);
  });

  test("close cancels what is under way and refuses what comes after", async () => {
    const peer = await openSilentPeer();
    const client = new VaultClient({ address: peer.address, name: "kv", logger });
    const waiting = client.lookup(NAMESPACE, KEY, SOON_MS);
    await delay(50);
    client.close();
    await expect(waiting).rejects.toMatchObject(coded("CLOSED"));
    await expect(client.lookup(NAMESPACE, KEY, SOON_MS)).rejects.toMatchObject(coded("CLOSED"));
    client.close();
  });

  test("a signal that fired before the call cancels it", async () => {
    const client = openClient(await openVault());
    const options = { deadlineMs: SOON_MS, signal: AbortSignal.abort() };
    const pages = await Pages.open(1, 4096);
    await expect(client.fetch(NAMESPACE, pages.plan(), options)).rejects.toMatchObject(
      coded("CANCELLED"),
    );
    expect(pages.fetched(0)).toEqual(Buffer.alloc(4096));
  });
});
