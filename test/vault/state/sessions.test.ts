// Owns the tests of sessions in a vault: kept under pressure, expired, released, listed, bounded by quota, refused by name.
import { describe, expect, test } from "vitest";
import { countBits } from "../../../src/base/block.ts";
import {
  KEEP_S_MAX,
  SESSION_NAME_BYTES_MAX,
  SESSIONS_MAX,
} from "../../../src/base/limits/sessions.ts";
import { newVaultCounters } from "../../../src/base/metrics.ts";
import { closeStore, createStore } from "../../../src/base/native.ts";
import { ModelNames } from "../../../src/vault/state/models.ts";
import { Sessions } from "../../../src/vault/state/sessions.ts";
import type { KeepRequest } from "../../../src/wire/messages.ts";
import type { TestClient } from "../../support/record-client.ts";
import { keysOf, makeRecord, NAMESPACE, OTHER_NAMESPACE } from "../../support/records.ts";
import type { TestRecord } from "../../support/records.ts";
import {
  closeAfterTest,
  logger,
  MIB,
  openClient,
  openVault,
  SOON_MS,
  until,
} from "../../support/vaults.ts";

const OWN = 30;
/** Records for three times the capacity of these tests' vault. */
const OTHERS = 400;
const RECORD = { payloadBytes: 32 * 1024 };

const asked = (request: Partial<KeepRequest> = {}): KeepRequest => ({
  session: "chat-1",
  namespace: NAMESPACE,
  tenant: 0,
  keys: Buffer.alloc(0),
  superseded: [],
  keepS: 0,
  release: false,
  ...request,
});

const some = (from: number, count: number): TestRecord[] =>
  Array.from({ length: count }, (_, index) => makeRecord(from + index, RECORD));

const own = (): TestRecord[] => some(0, OWN);

async function held(client: TestClient, records: readonly TestRecord[]): Promise<number> {
  const bits = await client.lookup(NAMESPACE, keysOf(records), SOON_MS);
  return countBits(bits, records.length);
}

/** Stores records that are never read again. */
async function flood(client: TestClient): Promise<void> {
  const others = some(1_000, OTHERS);
  for (let at = 0; at < OTHERS; at += 20) {
    await client.put(NAMESPACE, others.slice(at, at + 20), SOON_MS);
  }
}

describe("a session", () => {
  test("that is kept is listed and survives a flood, also what comes later; one that is only named does not", async () => {
    const vault = await openVault({ maxBytes: 4 * MIB, keptPercent: 50 });
    const client = openClient(vault);
    await client.nameModel(NAMESPACE, "some/model", SOON_MS);
    const records = own();
    const [early, late] = [records.slice(0, 20), records.slice(20)];
    await client.put(NAMESPACE, early, SOON_MS);
    await client.keep(asked({ keys: keysOf(records), keepS: 3600 }), SOON_MS);
    await client.put(NAMESPACE, late, SOON_MS);
    const named = some(500, OWN);
    await client.put(NAMESPACE, named, SOON_MS);
    await client.keep(asked({ session: "chat-2", keys: keysOf(named) }), SOON_MS);
    await flood(client);
    expect(await held(client, records)).toBe(OWN);
    expect(await held(client, named)).toBeLessThan(OWN);
    const [second, first] = await client.sessions(SOON_MS);
    expect(first).toMatchObject({ name: "chat-1", model: "some/model", blocks: OWN, kept: OWN });
    expect(first?.leftMs).toBeGreaterThan(3_000_000);
    expect(second).toMatchObject({ name: "chat-2", blocks: OWN, kept: 0, leftMs: 0 });
    expect(vault.stats()).toMatchObject({ keptBytes: first?.keptBytes, sessions: 2 });
  });

  test("may be evicted once its time is over, and is remembered", async () => {
    const vault = await openVault({ maxBytes: 4 * MIB, keptPercent: 50 });
    const client = openClient(vault);
    await client.put(NAMESPACE, own(), SOON_MS);
    await client.keep(asked({ keys: keysOf(own()), keepS: 1 }), SOON_MS);
    expect(vault.stats().keptBytes).toBeGreaterThan(0);
    await until(() => vault.stats().keptBytes === 0, "the end of its time");
    expect(vault.counters.get("sessions_expired")).toBe(1);
    expect(await client.sessions(SOON_MS)).toMatchObject([{ name: "chat-1", leftMs: 0, kept: 0 }]);
    await client.keep(asked({ namespace: Buffer.alloc(0), keepS: 60 }), SOON_MS);
    expect(await client.sessions(SOON_MS)).toMatchObject([{ name: "chat-1", kept: OWN }]);
  });

  test("that is released goes before what was stored earlier, and is forgotten", async () => {
    const vault = await openVault({ maxBytes: 4 * MIB });
    const client = openClient(vault);
    const earlier = some(500, OWN);
    await client.put(NAMESPACE, earlier, SOON_MS);
    await client.put(NAMESPACE, own(), SOON_MS);
    await client.keep(asked({ keys: keysOf(own()), keepS: 60 }), SOON_MS);
    await client.keep(asked({ release: true }), SOON_MS);
    expect(await client.sessions(SOON_MS)).toEqual([]);
    expect(vault.counters.get("sessions_released")).toBe(1);
    for (let from = 1000; (await held(client, own())) === OWN; from += 1) {
      await client.put(NAMESPACE, some(from, 1), SOON_MS);
    }
    expect(await held(client, earlier)).toBe(OWN);
  });

  test("above the quota is stored as everything else is; the answer and a counter say how much", async () => {
    const vault = await openVault({ maxBytes: 4 * MIB, keptPercent: 10 });
    const client = openClient(vault);
    await client.put(NAMESPACE, own(), SOON_MS);
    const { refused } = await client.keep(asked({ keys: keysOf(own()), keepS: 60 }), SOON_MS);
    expect(refused).toBeGreaterThan(0);
    expect(refused).toBeLessThan(OWN);
    expect(vault.counters.get("keeps_refused")).toBe(refused);
    expect(vault.stats().keptBytes).toBeLessThanOrEqual(0.1 * 4 * MIB);
  });

  test("is its tenant's and its namespace's; without a namespace all of that name are meant", async () => {
    const client = openClient(await openVault());
    await client.keep(asked({ tenant: 7, keepS: 60 }), SOON_MS);
    await client.keep(asked({ namespace: OTHER_NAMESPACE, keepS: 60 }), SOON_MS);
    await client.keep(asked({ release: true }), SOON_MS);
    expect(await client.sessions(SOON_MS)).toHaveLength(2);
    const all = asked({ namespace: Buffer.alloc(0), release: true });
    expect(await client.keep(all, SOON_MS)).toMatchObject({ sessions: 2 });
    expect(await client.sessions(SOON_MS)).toEqual([]);
  });

  test.each([
    ["without a name", { session: "" }],
    ["with a long name", { session: "n".repeat(SESSION_NAME_BYTES_MAX + 1) }],
    ["kept for longer than a week", { keepS: KEEP_S_MAX + 1 }],
    ["with keys of no namespace", { namespace: Buffer.alloc(0), keys: Buffer.alloc(36) }],
  ])("%s is refused", async (_what, request) => {
    const client = openClient(await openVault());
    await expect(client.keep(asked(request), SOON_MS)).rejects.toMatchObject({
      code: "VAULT_REFUSED",
    });
  });
});

test("beyond the limit the oldest session that is not kept is forgotten", () => {
  const store = createStore({ maxBytes: MIB, maxRecordBytes: MIB, recordClass: 0 });
  const [models, counters] = [new ModelNames(null, logger), newVaultCounters()];
  const sessions = closeAfterTest(new Sessions({ store, models, counters, logger }));
  sessions.receive(asked({ session: "kept", keepS: 60 }));
  for (let at = 0; at < SESSIONS_MAX; at += 1) sessions.receive(asked({ session: `named-${at}` }));
  const names = sessions.list().map(({ name }) => name);
  expect(names).toHaveLength(SESSIONS_MAX);
  expect(names).toContain("kept");
  expect(names).not.toContain("named-0");
  closeStore(store);
});
