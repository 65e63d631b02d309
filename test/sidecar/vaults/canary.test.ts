// Owns the proof that a vault which gives back other bytes than it was given is found by its canary and not believed any more.
import { expect, test, vi } from "vitest";
import { ItemStatus } from "../../../src/block.ts";
import type * as Limits from "../../../src/limits.ts";
import { createLogger } from "../../../src/log.ts";
import { writeRecord } from "../../../src/native.ts";
import type { FetchPlan, Piece, StoreOffer, StoreRequest } from "../../../src/wire/messages.ts";
import { openFakeVault } from "../../support/fake-vault.ts";
import { parseRecordHeader } from "../../support/native.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../../support/shim-client.ts";
import { openSidecar } from "../../support/sidecars.ts";
import { openClient, openVault, until } from "../../support/vaults.ts";

vi.mock("../../../src/limits.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  CANARY_INTERVAL_MS: 40,
  QUARANTINE_MS: 5_000,
}));

const PAGE = 8192;
const KEY_BYTES = 36;

const keysIn = (keys: Buffer): string[] =>
  Array.from({ length: keys.length / KEY_BYTES }, (_, index) =>
    keys.subarray(index * KEY_BYTES, (index + 1) * KEY_BYTES).toString("hex"),
  );

interface Stream<In> {
  request: In;
  write(message: unknown): void;
  end(): void;
  on(event: "data", listener: (message: In) => void): void;
  on(event: "end", listener: () => void): void;
}

/** Keeps whole records; `isForging`: gives each back with other bytes, under its own identity and with right checksums. */
class Forger {
  readonly records = new Map<string, Buffer>();
  isForging = false;
  forged = 0;

  handlers(): Record<string, unknown> {
    return {
      Lookup: (
        { request }: { request: { keys: Buffer } },
        done: (error: null, reply: unknown) => void,
      ): void => done(null, { present: this.#bitmap(keysIn(request.keys)) }),
      Store: (call: Stream<StoreRequest>): void => this.#store(call),
      Fetch: (call: Stream<FetchPlan>): void => this.#fetch(call),
      Name: (_call: unknown, done: (error: null, reply: unknown) => void): void => done(null, {}),
    };
  }

  #bitmap(keys: readonly string[]): Buffer {
    const bits = Buffer.alloc(Math.ceil(keys.length / 8));
    for (const [at, key] of keys.entries()) {
      if (this.records.has(key)) bits[at >> 3]! |= 1 << (at & 7);
    }
    return bits;
  }

  #store(call: Stream<StoreRequest>): void {
    let offer: StoreOffer | null = null;
    const parts = new Map<number, Buffer[]>();
    call.on("data", (message) => {
      if (message.offer !== undefined) {
        offer = message.offer;
        const count = keysIn(offer.keys).length;
        const wanted = Buffer.alloc(Math.ceil(count / 8), 0xff);
        call.write({ wanted: { wanted, statuses: Array<number>(count).fill(0) } });
      }
      for (const piece of message.chunk?.pieces ?? []) this.#take(call, offer!, parts, piece);
    });
    call.on("end", () => call.end());
  }

  #take(
    call: Stream<StoreRequest>,
    offer: StoreOffer,
    parts: Map<number, Buffer[]>,
    { item, offset, data, recordBytes }: Piece,
  ): void {
    parts.set(item, [...(parts.get(item) ?? []), data]);
    if (offset + data.length < recordBytes) return;
    this.records.set(keysIn(offer.keys)[item]!, Buffer.concat(parts.get(item)!));
    call.write({ result: { item, status: ItemStatus.ACCEPTED } });
  }

  #fetch(call: Stream<FetchPlan>): void {
    const keys = call.request.segments.flatMap((segment) => keysIn(segment.keys));
    for (const [item, key] of keys.entries()) {
      const data = this.#record(key);
      const piece = { item, offset: 0, recordBytes: data.length, data };
      const status = data.length === 0 ? ItemStatus.MISSING : ItemStatus.UNSPECIFIED;
      call.write({ chunk: { pieces: [{ ...piece, status }] } });
    }
    call.end();
  }

  #record(key: string): Buffer {
    const record = this.records.get(key) ?? Buffer.alloc(0);
    if (record.length === 0 || !this.isForging) return record;
    this.forged += 1;
    const payload = Buffer.from(record.subarray(192));
    payload[7]! ^= 1;
    return writeRecord(parseRecordHeader(record), payload);
  }
}

test("F9 a vault that forges records is quarantined: an alarm, and no hit from it until its time is over", async () => {
  const forger = new Forger();
  const vault = await openFakeVault(forger.handlers() as never, { maxRecordBytes: 1 << 20 });
  const lines: string[] = [];
  const destination = { write: (line: string): void => void lines.push(line) };
  const logger = createLogger("test", { level: "error", tty: false, destination });
  const kv = openClient(vault, "kv", { lanes: 0 });
  const sidecar = await openSidecar({ when: "always", vaults: { kv, ssm: null }, logger });
  const { counters } = sidecar;
  const engine = await FakeEngine.start(sidecar.socketPath);
  const blocks = makeBlocks("canary", 4, PAGE);
  engine.save(blocks);
  await until(() => counters.get("blocks_saved") === 4, "saves");
  await until(() => counters.get("canary_checks") > 3, "checks");
  expect(counters.get("canary_missing")).toBe(1);
  const good = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect(good.placed.get(0)).toHaveLength(4);
  for (const [index, block] of blocks.entries()) {
    expect(engine.holds(good, index, block)).toBe(true);
  }
  engine.release(good.plan);
  expect(counters.get("canary_wrong")).toBe(0);

  forger.isForging = true;
  await until(() => counters.get("canary_wrong") === 1, "the canary");
  expect(forger.forged).toBeGreaterThan(0);
  expect(sidecar.status().vaults.kv[0]!.state).toBe("quarantined");
  expect(lines.join("")).toMatch(/vault quarantined: it gave back other bytes/);
  // Neither from the vault, nor what came from it before.
  const bad = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect([bad.reason, bad.placed.size]).toEqual(["vault_down", 0]);
  engine.release(bad.plan);
  await until(() => counters.get("canary_wrong") === 2, "the canary to decide again");

  forger.isForging = false;
  await until(() => sidecar.status().vaults.kv[0]!.state === "up", "the quarantine to end");
  const again = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect(again.reason).toBe("complete");
});

test("a vault that is what it should be is checked again and again, and never suspected", async () => {
  const vault = await openVault();
  const kv = openClient(vault);
  const { counters, status } = await openSidecar({ vaults: { kv, ssm: null } });
  await until(() => counters.get("canary_checks") > 20, "checks");
  expect([counters.get("canary_missing"), counters.get("canary_wrong")]).toEqual([1, 0]);
  // Gone from the vault, as with any eviction: stored anew, and no alarm.
  await openClient(vault).flush(null, 5000);
  await until(() => counters.get("canary_missing") === 2, "the loss");
  expect([counters.get("canary_wrong"), status().vaults.kv[0]!.state]).toEqual([0, "up"]);
});
