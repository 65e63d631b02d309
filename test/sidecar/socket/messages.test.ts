// Owns the proof that every field of every message is checked, and that a refusal names field, value and expectation.
import { describe, expect, test } from "vitest";
import { PLAN_KEYS_MAX, SAVE_ITEMS_MAX } from "../../../src/base/limits/general.ts";
import { slotBytes } from "../../../src/sidecar/socket/frames.ts";
import { parseMessage } from "../../../src/sidecar/socket/messages.ts";
import { digest } from "../../support/records.ts";
import { helloFrame, makeGroup } from "../../support/shim-client.ts";

const HASH = digest("hash");
const GOOD: Record<string, Record<string, unknown>> = {
  hello: helloFrame({}),
  register: {
    t: "register",
    model: "test/model",
    max_model_len: 4096,
    step_tokens: 2048,
    kv_blocks: 100,
    groups: [makeGroup()],
  },
  mapped: { t: "mapped", arena: 7 },
  namespace: { t: "namespace", namespace: digest("n"), model: "test/model", parts: {} },
  prefetch: {
    t: "prefetch",
    req: "r",
    plan: 1,
    groups: [{ group: 0, class: "kv", hashes: Buffer.concat([HASH, HASH]), from: 1 }],
  },
  loaded: { t: "loaded", req: "r", plan: 1, tokens: 32 },
  release: { t: "release", req: "r", plan: 1 },
  answered: { t: "answered", req: "r", plan: 1, tokens: 33, us: 1000 },
  save: { t: "save", arena: 7, namespace: digest("n"), items: [[1, 2, 0, HASH, HASH, 16]] },
  return: { t: "return", arena: 7, slots: slotBytes([1, 2]) },
  counts: { t: "counts", counters: { dropped_save_no_slot: 3 } },
  ping: { t: "ping", n: 5 },
  status: { t: "status" },
};

function refusal(frame: Record<string, unknown>): string {
  try {
    parseMessage(frame, "test");
    return "";
  } catch (error) {
    return (error as Error).message;
  }
}

test.each(Object.entries(GOOD))("a good %s is taken", (name, frame) => {
  expect(parseMessage(frame, "test").t).toBe(name);
});

test("fields arrive as sent", () => {
  expect(parseMessage(GOOD["save"]!, "test")).toEqual({
    t: "save",
    arena: 7,
    namespace: digest("n"),
    items: [
      {
        slot: 1,
        generation: 2,
        group: 0,
        hash: HASH,
        parent: HASH,
        endTokens: 16,
        tenant: 0,
        anchor: HASH,
      },
    ],
  });
  const placed = [[1, 2, 0, HASH, HASH, 16, 0, digest("first of its run")]];
  expect(parseMessage({ ...GOOD["save"]!, items: placed }, "test")).toMatchObject({
    items: [{ hash: HASH, anchor: digest("first of its run") }],
  });
  const ofTenant = { ...GOOD["save"]!, items: [[1, 2, 0, HASH, HASH, 16, 2 ** 48 - 1]] };
  expect(parseMessage(ofTenant, "test")).toMatchObject({ items: [{ tenant: 2 ** 48 - 1 }] });
  const more = { beyond: 48, ahead: 3, handoff: 32 };
  expect(parseMessage({ ...GOOD["prefetch"]!, ...more }, "test")).toMatchObject(more);
  const returns = { ...GOOD["prefetch"]!, returns: 1 };
  expect(parseMessage(returns, "test")).toMatchObject({ returns: true });
  expect(parseMessage(GOOD["prefetch"]!, "test")).toMatchObject({ returns: false });
  const release = { ...GOOD["release"]!, begun: 1, took_us: 7 };
  expect(parseMessage(release, "test")).toMatchObject({ isBegun: true, tookUs: 7 });
  expect(parseMessage(GOOD["release"]!, "test")).toMatchObject({ isBegun: false, tookUs: 0 });
  for (const [saving, isSaving] of [
    [0, false],
    [1, true],
    [undefined, null],
  ] as const) {
    const counts = { ...GOOD["counts"]!, ...(saving === undefined ? {} : { saving }) };
    expect(parseMessage(counts, "test")).toMatchObject({ saving: isSaving });
  }
  expect(parseMessage(helloFrame({ producer: 1 }), "test")).toMatchObject({ isProducer: true });
  expect(parseMessage(helloFrame({ windows: 1 }), "test")).toMatchObject({ isWindowed: true });
  expect(parseMessage(helloFrame({}), "test")).toMatchObject({ isWindowed: false });
  expect(parseMessage(GOOD["return"]!, "test")).toEqual({
    t: "return",
    arena: 7,
    slots: Uint32Array.from([1, 2]),
  });
});

describe("each field", () => {
  const optional = new Set(["namespace.parts"]);
  const cases = Object.entries(GOOD).flatMap(([name, frame]) =>
    Object.keys(frame)
      .filter((field) => !optional.has(`${name}.${field}`))
      .map((field) => [name, field] as const),
  );

  test.each(cases)("%s without %s is refused by name", (name, field) => {
    const { [field]: _gone, ...rest } = GOOD[name]!;
    expect(refusal(rest)).toContain(`bad frame from test: ${field} = nothing: expected`);
  });

  test.each(cases)("%s with a list as %s is refused", (name, field) => {
    expect(refusal({ ...GOOD[name]!, [field]: [[]] })).toMatch(/^bad frame from test: .*expected/);
  });

  test.each(Object.keys(makeGroup()))("register without groups[0].%s is refused", (field) => {
    const { [field]: _gone, ...group } = makeGroup();
    const frame = { ...GOOD["register"]!, groups: [group] };
    expect(refusal(frame)).toContain(`groups[0].${field} = nothing: expected`);
  });
});

describe("values out of range", () => {
  const row = [1, 2, 0, HASH, HASH, 16];
  const group = { group: 0, class: "kv", hashes: HASH, from: 0 };
  test.each([
    ["an unknown name", { t: "hallo" }, 't = "hallo": expected a message of docs/protocol.md'],
    ["rank", helloFrame({ rank: 1 }), "rank = 1: expected an integer from 0 to 0"],
    ["world", helloFrame({ world: 0 }), "world = 0"],
    ["shards", helloFrame({ world: 4, shards: 3 }), "shards = 3: expected a divisor of world (4)"],
    ["role", helloFrame({ role: "boss" }), 'role = "boss": expected scheduler or worker or status'],
    ["engine", helloFrame({ engine: "" }), 'engine = ""'],
    ["bytes", helloFrame({ engine: "é".repeat(300) }), "a text of at most 512 bytes"],
    ["a fraction", { t: "mapped", arena: 1.5 }, "arena = 1.5: expected an integer"],
    ["a negative", { t: "ping", n: -1 }, "n = -1"],
    ["beyond exactness", { t: "ping", n: 2 ** 60 }, "n = 1152921504606847000"],
    ["dtype", withGroup({ dtype: "int4" }), 'groups[0].dtype = "int4": expected bf16 or f16'],
    ["tokens", withGroup({ tokens: 0 }), "groups[0].tokens = 0"],
    ["tail", withGroup({ tail: -1 }), "groups[0].tail = -1"],
    ["no groups", { ...GOOD["register"]!, groups: [] }, "groups = a list of 0"],
    ["namespace", { ...GOOD["namespace"]!, namespace: Buffer.alloc(31) }, "31 bytes: expected 32"],
    ["half a hash", plan({ ...group, hashes: Buffer.alloc(33) }), "a multiple of 32 bytes"],
    ["from", plan({ ...group, from: 2 }), "groups[0].from = 2: expected an integer from 0 to 1"],
    ["class", plan({ ...group, class: "mla" }), "groups[0].class"],
    ["hashes", plan({ ...group, hashes: Buffer.alloc(32 * (PLAN_KEYS_MAX + 1)) }), "hashes"],
    ["a short row", save([row.slice(1)]), "items[0] = a list of 5: expected 6 values"],
    ["a short hash", save([row.with(3, Buffer.alloc(8))]), "items[0][3] = 8 bytes: expected 32"],
    ["rows", save(Array.from({ length: SAVE_ITEMS_MAX + 1 }, () => row)), "items = a list of 4097"],
    ["half a pair", { ...GOOD["return"]!, slots: Buffer.alloc(4) }, "pairs of uint32"],
    ["counter name", { t: "counts", counters: { "a b": 1 } }, "counters.a b = 1"],
    ["counter value", { t: "counts", counters: { a: -1 } }, "counters.a = -1"],
  ])("%s", (_name, frame, reason) => {
    expect(refusal(frame)).toContain(reason);
  });

  function withGroup(fields: object): Record<string, unknown> {
    return { ...GOOD["register"]!, groups: [{ ...makeGroup(), ...fields }] };
  }
  function plan(fields: object): Record<string, unknown> {
    return { ...GOOD["prefetch"]!, groups: [fields] };
  }
  function save(items: unknown): Record<string, unknown> {
    return { ...GOOD["save"]!, items };
  }
});

test("of another protocol only the version is read", () => {
  const message = parseMessage({ t: "hello", protocol: 9, shim: "9.0.0" }, "test");
  expect(message).toMatchObject({ protocol: 9, shim: "9.0.0" });
});
