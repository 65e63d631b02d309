// Owns the proof that no bytes and no values make a decoder of ours fail in any way but its own: a million cases, by seed.
import { encode } from "@msgpack/msgpack";
import { describe, expect, test } from "vitest";
import { checkHello } from "../../src/client/greeting.ts";
import { NO_FILE, checkConfig } from "../../src/config/check.ts";
import { isTierkvError } from "../../src/errors.ts";
import type { ErrorCode } from "../../src/errors.ts";
import { parseRecordHeader, verifyRecord } from "../../src/native.ts";
import { FrameDecoder } from "../../src/sidecar/frames.ts";
import { parseMessage } from "../../src/sidecar/messages.ts";
import { checkOffer, checkPlan } from "../../src/vault/checks.ts";
import { HELLO } from "../support/fake-vault.ts";
import { makeRecord } from "../support/records.ts";
import { makeGroup } from "../support/shim-client.ts";
import { Dice, testSeed } from "./lib/random.ts";

const TEST_MS_MAX = 120_000;
/** Cases the event loop may be kept for: the runner wants to hear of us. */
const STRETCH = 10_000;

const pick = <T>(dice: Dice, from: readonly T[]): T => from[dice.below(from.length)]!;

function bytes(dice: Dice, most: number): Buffer {
  const made = Buffer.alloc(dice.below(most + 1));
  for (let at = 0; at < made.length; at += 1) made[at] = dice.below(256);
  return made;
}

const NUMBERS = [0, -0, -1, 1, 0.5, 2 ** 31, 2 ** 32, 2 ** 53, -(2 ** 53), 1e308, NaN, Infinity];
const TEXTS = ["", "kv", "ssm", "attention", "bf16", "__proto__", "constructor", "\u0000", "ü"];

/** Anything that a frame can carry, a few levels deep. */
function value(dice: Dice, depth = 2): unknown {
  const kinds = depth === 0 ? 6 : 8;
  switch (dice.below(kinds)) {
    case 0:
      return pick(dice, NUMBERS);
    case 1:
      return dice.below(1000);
    case 2:
      return pick(dice, TEXTS);
    case 3:
      return bytes(dice, 80);
    case 4:
      return dice.below(2) === 0;
    case 5:
      return null;
    case 6:
      return Array.from({ length: dice.below(4) }, () => value(dice, depth - 1));
    default:
      return { [pick(dice, TEXTS)]: value(dice, depth - 1), group: value(dice, depth - 1) };
  }
}

/** Runs `work` so often; it may throw these codes of ours and nothing else. Gives how many were taken. */
async function only(
  cases: number,
  codes: readonly ErrorCode[],
  work: (dice: Dice) => unknown,
): Promise<number> {
  const seed = testSeed();
  const dice = new Dice(seed);
  let taken = 0;
  for (let number = 0; number < cases; number += 1) {
    try {
      work(dice);
      taken += 1;
    } catch (error) {
      if (isTierkvError(error) && codes.includes(error.code)) continue;
      throw new Error(`case ${number} of seed ${seed}`, { cause: error });
    }
    if (number % STRETCH === 0) await new Promise(setImmediate);
  }
  return taken;
}

/** A copy with some bytes changed, cut or made longer. */
function mangled(dice: Dice, good: Buffer): Buffer {
  const copy = Buffer.from(good);
  for (let turn = dice.below(4); turn >= 0; turn -= 1) {
    copy[dice.below(copy.length)] = dice.below(256);
  }
  const kind = dice.below(6);
  if (kind === 0) return copy.subarray(0, dice.below(copy.length));
  return kind === 1 ? Buffer.concat([copy, bytes(dice, 40)]) : copy;
}

describe("F10 decoders meet anything", { timeout: TEST_MS_MAX }, () => {
  test("F10 records: 400,000 cases", async () => {
    const { record } = makeRecord(1, { payloadBytes: 64 });
    const header = record.subarray(0, 192);
    const taken = await only(200_000, ["BAD_RECORD"], (dice) => {
      verifyRecord(dice.below(2) === 0 ? mangled(dice, record) : bytes(dice, 260));
    });
    // Bytes that stay as they were are a good record still.
    expect(taken).toBeLessThan(20_000);
    await only(200_000, ["BAD_RECORD"], (dice) => parseRecordHeader(mangled(dice, header)));
  });

  test("F10 frames: 250,000 cases", async () => {
    await only(250_000, ["BAD_FRAME"], (dice) => {
      const body =
        dice.below(2) === 0 ? bytes(dice, 60) : mangled(dice, Buffer.from(encode(value(dice))));
      const head = Buffer.alloc(4);
      head.writeUInt32LE(dice.below(8) === 0 ? dice.below(2 ** 32) : body.length);
      const decoder = new FrameDecoder("a peer");
      decoder.push(Buffer.concat([head, body]));
      while (decoder.next() !== null);
    });
  });

  test("F10 messages of shims: 200,000 cases", async () => {
    const names = [
      "hello",
      "register",
      "mapped",
      "namespace",
      "prefetch",
      "release",
      "save",
    ].concat(["return", "counts", "ping", "explain", "status", "nonsense"]);
    const fields = ["protocol", "role", "engine", "rank", "world", "shards", "pid", "shim"].concat(
      ["vllm", "model", "max_model_len", "kv_blocks", "groups", "arena", "namespace", "parts"],
      ["req", "plan", "tokens", "load_us", "items", "slots", "counters", "steps", "n", "most"],
    );
    await only(200_000, ["BAD_FRAME", "VERSION_MISMATCH", "ENGINE_REFUSED"], (dice) => {
      const frame: Record<string, unknown> = { t: pick(dice, names) };
      for (const field of fields) if (dice.below(3) > 0) frame[field] = value(dice);
      if (dice.below(4) === 0) {
        frame["groups"] = [{ ...makeGroup(), [pick(dice, Object.keys(makeGroup()))]: value(dice) }];
      }
      parseMessage(frame, "a shim");
    });
  });

  test("F10 requests and answers of gRPC: 120,000 cases", async () => {
    const codes: ErrorCode[] = ["OVERLOAD", "WRONG_CLASS", "BAD_ARGUMENT"];
    const keys = (dice: Dice): Buffer =>
      dice.below(3) === 0 ? bytes(dice, 120) : Buffer.alloc(36 * dice.below(5), dice.below(256));
    const count = (dice: Dice): number => Math.abs(pick(dice, NUMBERS)) || 0;
    await only(40_000, codes, (dice) => {
      const namespace = dice.below(2) === 0 ? bytes(dice, 40) : Buffer.alloc(32);
      const recordBytes = Array.from({ length: dice.below(5) }, () => count(dice));
      const tenant = dice.below(2 ** 31);
      const offer = {
        namespace,
        keys: keys(dice),
        recordBytes,
        recordClass: dice.below(4),
        tenant,
      };
      const recordClass = pick(dice, ["kv", "ssm", "both"] as const);
      checkOffer(offer, { recordClass, maxRecordBytes: 1 << 20 });
    });
    await only(40_000, codes, (dice) => {
      const namespace = dice.below(2) === 0 ? bytes(dice, 40) : Buffer.alloc(32);
      const segment = (): never =>
        ({ recordClass: dice.below(4), group: count(dice), keys: keys(dice) }) as never;
      const segments = Array.from({ length: dice.below(4) }, segment);
      const plan = { namespace, segments, chunkBytes: count(dice) };
      checkPlan(plan, pick(dice, ["kv", "ssm", "both"] as const));
    });
    await only(40_000, ["VERSION_MISMATCH", "VAULT_BROKEN", "VAULT_CLASS"], (dice) => {
      const reply = { ...HELLO, protocol: count(dice), recordVersion: dice.below(3) };
      const limits = { maxKeys: count(dice), maxRecordBytes: count(dice) };
      const context = { name: "kv", address: "a:1", call: "Hello", timeoutMs: 1 } as const;
      checkHello({ ...reply, ...limits, recordClass: dice.below(5) }, "kv", context);
    });
  });

  test("F10 configuration files: 30,000 cases", async () => {
    const good = '[cluster]\nrole = "inference"\nkv_cold = "h:1"\n[vault]\nmax_bytes = "24GiB"\n';
    const snips = [
      "[",
      "]",
      "=",
      '"',
      "'",
      "\n",
      "#",
      "{",
      "}",
      ",",
      "role",
      "1e9",
      "true",
      "\u0000",
    ];
    await only(30_000, [], (dice) => {
      let text = good;
      for (let turn = dice.below(6); turn >= 0; turn -= 1) {
        const at = dice.below(text.length + 1);
        text = text.slice(0, at) + pick(dice, snips) + text.slice(at + dice.below(6));
      }
      // What is wrong with a file is told as a list, never thrown.
      checkConfig(text, NO_FILE, {});
    });
  });
});
