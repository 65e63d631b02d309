// Owns the proof that look-ups over gRPC, used while a client has no lanes, become spans like those on lanes.
import { expect, test } from "vitest";
import { SPANS_QUEUED_MAX } from "../../../src/base/limits/seen.ts";
import { LookupSpans } from "../../../src/vault/state/lookup-spans.ts";
import { keysOf, makeRecords, NAMESPACE, noise } from "../../support/records.ts";
import { openClient, openVault, SOON_MS } from "../../support/vaults.ts";

const CONTEXT = noise(25, 1);
const OF_CONTEXT = { trace: CONTEXT, isCounted: true };

test.each([0, 2])("a look-up of a trace is one span, over %s lanes", async (lanes) => {
  const vault = await openVault({ traces: true });
  const records = makeRecords(3);
  await openClient(vault).put(NAMESPACE, records.slice(0, 2), SOON_MS);
  const client = openClient(vault, "kv", { lanes });
  await client.hello(SOON_MS);
  const keys = keysOf(records);
  vault.spans();
  expect([...(await client.lookup(NAMESPACE, keys, SOON_MS, OF_CONTEXT))]).toEqual([0b11]);
  await client.lookup(NAMESPACE, keys, SOON_MS);
  const { spans, dropped } = vault.spans();
  expect(spans).toMatchObject([{ context: CONTEXT, asked: "lookup", records: 3, done: 2 }]);
  expect(dropped).toBe(0);
  expect(Math.abs((spans[0]?.begunMs ?? 0) - Date.now())).toBeLessThan(SOON_MS);
  expect(vault.spans().spans).toEqual([]);
});

test("an invalid context makes no span, and spans that nobody collects are bounded and counted", () => {
  const all = new LookupSpans();
  const none = { spans: [], dropped: 0 };
  expect(
    all.run(
      noise(24, 1),
      1,
      () => "found",
      () => 1,
    ),
  ).toBe("found");
  expect(all.takeWith(none)).toEqual(none);
  for (let n = 0; n < SPANS_QUEUED_MAX + 5; n += 1) all.run(CONTEXT, 1, () => 1, Number);
  const { spans, dropped } = all.takeWith({ spans: [], dropped: 2 });
  expect([spans.length, dropped]).toEqual([SPANS_QUEUED_MAX, 7]);
});
