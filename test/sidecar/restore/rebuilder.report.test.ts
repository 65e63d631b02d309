// Owns the proof that a rebuild waits for no report of a record that was not sound.
import { expect, test } from "vitest";
import { Arena, SIDECAR_OWNER } from "../../../src/arena/arena.ts";
import { ItemStatus } from "../../../src/block.ts";
import type { Vault } from "../../../src/client/vault.ts";
import { newSidecarCounters } from "../../../src/metrics.ts";
import { Rebuilder } from "../../../src/sidecar/restore/rebuilder.ts";
import { Block } from "../../../src/sidecar/slots/block.ts";
import { digest, makeRecord, NAMESPACE } from "../../support/records.ts";
import { registerOpaque } from "../../support/slots.ts";
import { closeAfterTest, logger, until } from "../../support/vaults.ts";

const PAGE = 4096;
const { BAD_RECORD, MISSING } = ItemStatus;

test("a rebuild from records that are not sound ends while the vault is still told", async () => {
  const arena = closeAfterTest(new Arena({ slotBytes: PAGE, slotCount: 1, dir: null }));
  await until(() => arena.status().touchedSlots === 1, "a touched arena");
  const counters = newSidecarCounters();
  const vault = {
    tier: "vault",
    collect: (_namespace: Buffer, _keys: Buffer, ids: readonly number[]) =>
      Promise.resolve({ statuses: ids.map(() => BAD_RECORD), bytes: 0, reason: null }),
    report: () => new Promise(() => {}),
  } as unknown as Vault;
  const kin = { home: 0, others: [{ at: 2, vault: 0 }], last: 2, vault: 0 };
  const rebuilder = new Rebuilder({
    vaults: [vault],
    pool: { kinOf: () => kin, width: 2 },
    counters,
    logger,
  });
  const hashes = Buffer.concat([digest("a"), digest("b"), digest("c")]);
  const place = { parent: Buffer.alloc(32), first: 0, tenant: 0, owners: new Uint8Array(1) };
  const run = { namespace: NAMESPACE, recordClass: "kv", group: 0, hashes, ...place } as const;
  const block = new Block("a", { ...run, stripes: { first: 0, hashes } }, 0);
  const plan = {
    arena: arena.id,
    fidelity: 0,
    keys: makeRecord(0, { payloadBytes: PAGE }).key,
    geometries: Uint32Array.of(registerOpaque(PAGE)),
    leases: arena.lease(SIDECAR_OWNER, 1),
  };
  const { statuses } = await rebuilder.fetch(NAMESPACE, plan, { deadlineMs: 1_000 }, [block]);
  expect([...statuses]).toEqual([MISSING]);
  expect(counters.get("bad_records")).toBe(2);
});
