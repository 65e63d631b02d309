// Owns the proof that no bytes and no values make a decoder fail with a foreign error: a million cases with parsers.test.ts.
// @module-tag nightly
import { encode } from "@msgpack/msgpack";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { ErrorCode } from "../../src/base/errors.ts";
import { checkHello } from "../../src/client/vault/hello.ts";
import { FrameDecoder } from "../../src/sidecar/socket/frames.ts";
import { parseMessage } from "../../src/sidecar/socket/messages.ts";
import { checkKeys } from "../../src/vault/state/checks.ts";
import { HELLO } from "../support/fake-vault.ts";
import { parseRecordHeader, verifyRecord } from "../support/native.ts";
import { makeRecord } from "../support/records.ts";
import { makeGroup } from "../support/shim-client.ts";
import { bytes, damage, meet, number, value } from "./lib/cases.ts";

const TEST_MS_MAX = 240_000;
const HASH = Buffer.alloc(32, 9);

type Frame = Record<string, unknown>;

const REGISTER: Frame = {
  t: "register",
  model: "test/model",
  max_model_len: 512,
  step_tokens: 512,
  kv_blocks: 100,
  groups: [makeGroup()],
};
const NAMESPACE: Frame = { t: "namespace", namespace: HASH, model: "test/model", parts: {} };
const HELLO_OF = { protocol: 2, engine: "e", rank: 1, world: 4, shards: 2, pid: 7, shim: "1" };

/** One message of each kind, as a shim sends it. */
const MESSAGES: readonly Frame[] = [
  REGISTER,
  NAMESPACE,
  { t: "hello", role: "worker", vllm: "0.32.0", ...HELLO_OF },
  { t: "mapped", arena: 1 },
  { t: "save", arena: 1, namespace: HASH, items: [[1, 2, 3, HASH, HASH, 16, 5]] },
  { t: "return", arena: 1, slots: Buffer.alloc(16) },
  { t: "prefetch", req: "r", plan: 1, groups: [{ group: 0, class: "kv", hashes: HASH, from: 0 }] },
  { t: "release", req: "r", plan: 1, tokens: 16, load_us: 5 },
  { t: "counts", counters: { hits: 1 }, steps: [[1, 2, 3]] },
  { t: "ping", n: 1 },
  { t: "status" },
  { t: "explain", req: "r", most: 5 },
];

function copy(from: unknown): unknown {
  if (Array.isArray(from)) return from.map(copy);
  if (typeof from !== "object" || from === null || Buffer.isBuffer(from)) return from;
  return Object.fromEntries(Object.entries(from).map(([name, of]) => [name, copy(of)]));
}

/** Returns every map and array in a frame, where a field can stand. */
function places(frame: unknown): object[] {
  if (typeof frame !== "object" || frame === null || Buffer.isBuffer(frame)) return [];
  return [frame, ...Object.values(frame).flatMap(places)];
}

/** Makes valid messages with up to four wrong fields, or none. */
function wrong(messages: readonly Frame[]): fc.Arbitrary<Frame> {
  const change = fc.tuple(fc.nat(99), fc.nat(99), fc.oneof(value, fc.constant(undefined)));
  const changes = fc.array(change, { maxLength: 4 });
  return fc.tuple(fc.constantFrom(...messages), changes).map(([good, list]) => {
    const frame = copy(good) as Frame;
    for (const [where, which, instead] of list) {
      const all = places(frame);
      const place = all[where % all.length] as Frame;
      const names = Object.keys(place).concat("n");
      place[names[which % names.length]!] = instead;
    }
    return frame;
  });
}

const REFUSALS: ErrorCode[] = ["BAD_FRAME", "VERSION_MISMATCH", "ENGINE_REFUSED"];

describe("F10 decoders meet anything", { timeout: TEST_MS_MAX }, () => {
  test("F10 records: 400,000 cases", async () => {
    const { record } = makeRecord(1, { payloadBytes: 64 });
    const header = record.subarray(0, 192);
    const records = fc.oneof(
      { weight: 3, arbitrary: damage.map((harm) => harm(record)) },
      bytes(260),
    );
    const taken = await meet(200_000, records, ["BAD_RECORD"], verifyRecord);
    // Unchanged bytes are still a valid record.
    expect(taken).toBeLessThan(20_000);
    const headers = damage.map((harm) => harm(header));
    await meet(200_000, headers, ["BAD_RECORD"], parseRecordHeader);
  });

  test("F10 frames: 250,000 cases", async () => {
    const encoded = fc.tuple(value, damage).map(([of, harm]) => harm(Buffer.from(encode(of))));
    const length = fc.oneof(
      { weight: 7, arbitrary: fc.constant(null) },
      fc.integer({ min: 0, max: 2 ** 32 - 1 }) as fc.Arbitrary<number | null>,
    );
    const frames = fc.tuple(fc.oneof(bytes(60), encoded), length);
    await meet(250_000, frames, ["BAD_FRAME"], ([body, said]) => {
      const head = Buffer.alloc(4);
      head.writeUInt32LE(said ?? body.length);
      const decoder = new FrameDecoder("a peer");
      decoder.push(Buffer.concat([head, body]));
      while (decoder.next() !== null);
    });
  });

  test("F10 messages of shims: 150,000 cases", async () => {
    const taken = await meet(150_000, wrong(MESSAGES), REFUSALS, (frame) => {
      expect(parseMessage(frame, "a shim").t).toBe(frame["t"]);
    });
    expect(taken).toBeGreaterThan(0);
  });

  test("F10 namespaces and registrations: 50,000 cases", async () => {
    const taken = await meet(50_000, wrong([NAMESPACE, REGISTER]), REFUSALS, (frame) => {
      const message = parseMessage(frame, "a shim");
      if (message.t === "namespace") expect(Buffer.from(message.namespace)).toHaveLength(32);
      if (message.t !== "register") return;
      for (const group of message.groups) {
        const { class: of, layout, dtype, ...numbers } = group;
        expect(typeof of + typeof layout + typeof dtype).toBe("stringstringstring");
        const isWhole = (count: number): boolean => Number.isInteger(count) && count >= 0;
        expect(Object.values(numbers).every(isWhole)).toBe(true);
      }
    });
    expect(taken).toBeGreaterThan(0);
  });
});

describe("F10 checks meet anything", { timeout: TEST_MS_MAX }, () => {
  const codes: ErrorCode[] = ["OVERLOAD", "BAD_ARGUMENT"];
  const keys = fc.oneof(
    bytes(120),
    fc.tuple(fc.nat(4), fc.nat(255)).map(([many, byte]) => Buffer.alloc(36 * many, byte)),
  );
  const namespace = fc.oneof(bytes(40), fc.constant(HASH));
  const count = number.map((of) => Math.abs(of) || 0);

  test("F10 keys: 80,000 cases", async () => {
    await meet(80_000, fc.tuple(namespace, keys), codes, ([space, packed]) => {
      checkKeys(space, packed);
    });
  });

  test("F10 answers of vaults: 40,000 cases", async () => {
    const replies = fc.record({
      protocol: count,
      recordVersion: fc.nat(2),
      maxKeys: count,
      maxRecordBytes: count,
      recordClass: fc.nat(4),
    });
    const context = { name: "kv", address: "a:1", call: "Hello", timeoutMs: 1 } as const;
    const refusals: ErrorCode[] = ["VERSION_MISMATCH", "VAULT_BROKEN", "VAULT_CLASS"];
    await meet(40_000, replies, refusals, (reply) =>
      checkHello({ ...HELLO, ...reply }, "kv", context),
    );
  });
});
