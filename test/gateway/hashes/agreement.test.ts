// Owns the proof that the form of an engine's hashes is learnt from what it tells, and given up where it differs.
import { encode } from "@msgpack/msgpack";
import { pino } from "pino";
import { describe, expect, test } from "vitest";
import { readBatch } from "../../../src/gateway/events/batch.ts";
import type { KvEvent } from "../../../src/gateway/events/batch.ts";
import { Agreement } from "../../../src/gateway/hashes/agreement.ts";
import {
  ALGORITHMS,
  DEFAULT_SEED,
  hashOfBlock,
  lowOf,
  NOT_APART,
  rootOf,
} from "../../../src/gateway/hashes/forms.ts";
import type { Apart, Base, Tagging } from "../../../src/gateway/hashes/forms.ts";
import { GATEWAY_HASH_CHECK_EVERY } from "../../../src/limits/gateway.ts";
import { digest } from "../../support/records.ts";

const SIZE = 4;
const NAMESPACE = digest("a namespace");
const tokensOf = (from: number, blocks = 3): number[] =>
  Array.from({ length: blocks * SIZE }, (_none, at) => from + at);

/** What was logged, by its words. */
function listening(): { agreement: Agreement; lines: string[] } {
  const lines: string[] = [];
  const write = (line: string): void => void lines.push((JSON.parse(line) as { msg: string }).msg);
  return { agreement: new Agreement("e", pino({}, { write })), lines };
}

/** Through the wire: what is read is what counts. */
function read(event: object): KvEvent {
  const [only] = readBatch(encode([0, [event], 0], { useBigInt64: true })).events;
  return only!;
}

interface Told {
  apart?: Apart;
  tagging?: Tagging;
  /** Blocks that were told of before. */
  skip?: number;
  areBytes?: boolean;
}

/** An event of a prompt, as an engine of this form tells it. */
function stored(base: Base, tokens: readonly number[], told: Told = {}): KvEvent {
  const { apart = NOT_APART, tagging = "bare", skip = 0, areBytes = false } = told;
  const hashes: Buffer[] = [];
  for (let at = 0; at < tokens.length; at += SIZE) {
    const how = [apart, at === 0, tagging] as const;
    const above = hashes.at(-1) ?? base.root;
    hashes.push(hashOfBlock(base, above, tokens, [at, at + SIZE], how)!);
  }
  const named = (hash: Buffer): Buffer | bigint => (areBytes ? hash : lowOf(hash));
  const lora = apart.adapter?.name ?? null;
  const keysOf = (at: number): string[] | null => {
    const keys = [lora, at === 0 ? apart.salt : null].filter((key) => key !== null);
    return keys.length === 0 ? null : keys;
  };
  return read({
    type: "BlockStored",
    block_hashes: hashes.slice(skip).map(named),
    parent_block_hash: skip === 0 ? null : named(hashes[skip - 1]!),
    token_ids: tokens.slice(skip * SIZE),
    block_size: SIZE,
    lora_id: null,
    medium: "GPU",
    lora_name: lora,
    extra_keys: hashes.slice(skip).map((_hash, at) => keysOf(skip + at)),
  });
}

const named = (root: Buffer, ...more: unknown[]): KvEvent =>
  read({
    type: "BlockStored",
    block_hashes: [],
    parent_block_hash: null,
    token_ids: [],
    block_size: SIZE,
    lora_id: null,
    medium: "STORAGE",
    lora_name: null,
    extra_keys: [["tierkv", NAMESPACE.toString("hex"), 2, root.toString("hex"), ...more]],
    group_idx: 3,
  });

describe.each(ALGORITHMS)("%s", (algorithm) => {
  const usual = { algorithm, root: rootOf(algorithm, DEFAULT_SEED) };
  const drawn = { algorithm, root: digest("drawn at random") };

  test.each([false, true])("is learnt from the first prompt; hashes as bytes: %s", (areBytes) => {
    const { agreement } = listening();
    agreement.hear(stored(usual, tokensOf(1), { skip: 1, areBytes }));
    expect(agreement.state).toBe("learning");
    expect(agreement.formFor(NOT_APART)).toBeNull();
    agreement.hear(stored(usual, tokensOf(1), { areBytes }));
    expect(agreement.state).toBe("agreed");
    expect(agreement.formFor(NOT_APART)?.[0]).toEqual(usual);
  });

  test("a root that is drawn is not known until the engine says it", () => {
    const { agreement } = listening();
    agreement.hear(stored(drawn, tokensOf(1)));
    expect(agreement.state).toBe("learning");
    agreement.hear(named(drawn.root));
    agreement.hear(stored(drawn, tokensOf(9)));
    expect(agreement.formFor(NOT_APART)?.[0]).toEqual(drawn);
    expect(agreement.named).toEqual({ namespace: NAMESPACE, shards: 2, groups: [3] });
  });

  test("a prompt whose beginning was told of long ago teaches it by its hashes", async () => {
    const { agreement } = listening();
    agreement.hear(named(drawn.root));
    await agreement.expect(tokensOf(1), SIZE, 100);
    agreement.hear(stored(drawn, tokensOf(1000), { skip: 2 }));
    expect(agreement.state).toBe("learning");
    agreement.hear(stored(drawn, tokensOf(1), { skip: 2 }));
    expect(agreement.formFor(NOT_APART)?.[0]).toEqual(drawn);
  });

  test.each<Tagging>(["bare", "tagged"])("salts and adapters are %s once a salt was", (tagging) => {
    const { agreement } = listening();
    const apart = { adapter: null, salt: "team" };
    const adapter = { adapter: { name: "a", path: "/a" }, salt: null };
    agreement.hear(stored(usual, tokensOf(1), { apart, tagging }));
    agreement.hear(stored(usual, tokensOf(1)));
    expect([agreement.formFor(apart), agreement.formFor(adapter)]).toEqual([null, null]);
    agreement.hear(stored(usual, tokensOf(1), { apart, tagging }));
    expect(agreement.formFor(apart)).toEqual([usual, tagging]);
    expect(agreement.formFor(adapter)).toEqual([usual, tagging]);
    expect(agreement.form).toBe(`${algorithm} ${tagging}`);
  });

  test("one that differs at its first prompt is never asked for, and that is said once", () => {
    const { agreement, lines } = listening();
    agreement.hear(named(drawn.root));
    for (let n = 0; n < 3; n += 1) agreement.hear(stored(usual, tokensOf(n)));
    // Known after all: the usual seed, whatever it says.
    expect(agreement.state).toBe("agreed");
    agreement.forget();
    agreement.hear(named(drawn.root));
    const other = { algorithm, root: digest("another root") };
    for (let n = 0; n < 3; n += 1) agreement.hear(stored(other, tokensOf(n)));
    expect(agreement.state).toBe("off");
    expect(agreement.formFor(NOT_APART)).toBeNull();
    expect(lines.filter((line) => line.includes("not asked"))).toHaveLength(1);
    for (let n = 0; n < 3; n += 1) agreement.hear(stored(usual, tokensOf(n)));
    expect(agreement.state).toBe("off");
  });

  test("one that differs later is found by the share that is checked", () => {
    const { agreement, lines } = listening();
    agreement.hear(stored(usual, tokensOf(1)));
    for (let n = 0; n <= GATEWAY_HASH_CHECK_EVERY; n += 1) {
      agreement.hear(stored(drawn, tokensOf(n)));
    }
    expect(agreement.state).toBe("off");
    expect(lines.filter((line) => line.includes("not asked"))).toHaveLength(1);
  });

  test("another process begins anew", () => {
    const { agreement } = listening();
    agreement.hear(named(usual.root));
    agreement.hear(stored(usual, tokensOf(1)));
    agreement.forget();
    expect([agreement.state, agreement.form, agreement.named]).toEqual(["learning", "", null]);
    agreement.hear(named(drawn.root));
    agreement.hear(stored(drawn, tokensOf(1)));
    expect(agreement.formFor(NOT_APART)?.[0]).toEqual(drawn);
  });
});

test("another name takes the place of the first, with its groups; none ends it", () => {
  const { agreement } = listening();
  const root = digest("root");
  const name = { namespace: NAMESPACE, shards: 1, root };
  const other = { namespace: digest("another"), shards: 2, root };
  const of = { kind: "named", blockSize: SIZE } as const;
  for (const group of [0, 1]) agreement.hear({ ...of, name, group });
  expect(agreement.named).toEqual({ namespace: NAMESPACE, shards: 1, groups: [0, 1] });
  agreement.hear({ ...of, name: other, group: 1 });
  expect(agreement.named).toEqual({ namespace: other.namespace, shards: 2, groups: [1] });
  agreement.hear({ ...of, name: null, group: 1 });
  expect(agreement.named).toBeNull();
});

test("pictures say nothing of the form", () => {
  const usual = { algorithm: "sha256" as const, root: rootOf("sha256", DEFAULT_SEED) };
  const { agreement } = listening();
  agreement.hear(named(usual.root));
  const event = stored(usual, tokensOf(1)) as Extract<KvEvent, { kind: "stored" }>;
  const pictured = event.blocks.map((block) => ({ ...block, hash: 7n, extra: ["digest", "0"] }));
  agreement.hear({ ...event, blocks: pictured });
  expect(agreement.state).toBe("learning");
  agreement.hear(event);
  agreement.hear({ ...event, blocks: pictured });
  expect(agreement.state).toBe("agreed");
});

test.each([
  ["no namespace", ["tierkv", "ab", 1, "cd".repeat(32)]],
  ["no root", ["tierkv", "ab".repeat(32), 1]],
  ["no shards", ["tierkv", "ab".repeat(32), 0, "cd".repeat(32)]],
  ["shards without end", ["tierkv", "ab".repeat(32), 1e9, "cd".repeat(32)]],
])("a name of %s is none", (_what, name) => {
  const event = {
    type: "BlockStored",
    block_hashes: [],
    parent_block_hash: null,
    token_ids: [],
    block_size: SIZE,
    medium: "STORAGE",
    extra_keys: [name],
  };
  expect(read(event)).toEqual({ kind: "named", name: null, group: 0, blockSize: SIZE });
});
