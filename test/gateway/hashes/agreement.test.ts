// Owns the proof that the form of an engine's hashes is learnt from what it tells, and given up where it differs.
import { pino } from "pino";
import { describe, expect, test } from "vitest";
import { GATEWAY_HASH_CHECK_EVERY } from "../../../src/base/limits/gateway.ts";
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
import { BlockIndex } from "../../../src/gateway/index/index-of-blocks.ts";
import { batchOf, naming } from "../../support/kv-batches.ts";
import type { Wire } from "../../support/kv-batches.ts";
import { digest } from "../../support/records.ts";

const SIZE = 4;
const NAMESPACE = digest("a namespace");
const tokensOf = (from: number, blocks = 3): number[] =>
  Array.from({ length: blocks * SIZE }, (_none, at) => from + at);

interface Listening {
  agreement: Agreement;
  /** What was logged, by its words. */
  lines: string[];
  hear(event: Wire): void;
}

/** Through the wire and the index: what is read is what counts. */
function listening(): Listening {
  const lines: string[] = [];
  const write = (line: string): void => void lines.push((JSON.parse(line) as { msg: string }).msg);
  const index = new BlockIndex(1);
  const agreement = new Agreement("e", pino({}, { write }), index, 0);
  const hear = (event: Wire): void => {
    const report = index.apply(0, batchOf(event));
    if (report !== null) agreement.hear(report);
  };
  return { agreement, lines, hear };
}

interface Told {
  apart?: Apart;
  tagging?: Tagging;
  /** Blocks that were told of before. */
  skip?: number;
  areBytes?: boolean;
}

/** An event of a prompt, as an engine of this form tells it. */
function stored(base: Base, tokens: readonly number[], told: Told = {}): Wire {
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
  return {
    type: "BlockStored",
    block_hashes: hashes.slice(skip).map(named),
    parent_block_hash: skip === 0 ? null : named(hashes[skip - 1]!),
    token_ids: tokens.slice(skip * SIZE),
    block_size: SIZE,
    lora_id: null,
    medium: "GPU",
    lora_name: lora,
    extra_keys: hashes.slice(skip).map((_hash, at) => keysOf(skip + at)),
  };
}

const named = (root: Buffer, group = 3, shards = 2, namespace = NAMESPACE): Wire =>
  naming([namespace.toString("hex"), shards, root.toString("hex")], SIZE, group);

describe.each(ALGORITHMS)("%s", (algorithm) => {
  const usual = { algorithm, root: rootOf(algorithm, DEFAULT_SEED) };
  const drawn = { algorithm, root: digest("drawn at random") };

  test.each([false, true])("is learnt from the first prompt; hashes as bytes: %s", (areBytes) => {
    const { agreement, hear } = listening();
    hear(stored(usual, tokensOf(1), { skip: 1, areBytes }));
    expect(agreement.state).toBe("learning");
    expect(agreement.formFor(NOT_APART)).toBeNull();
    hear(stored(usual, tokensOf(1), { areBytes }));
    expect(agreement.state).toBe("agreed");
    expect(agreement.formFor(NOT_APART)?.[0]).toEqual(usual);
  });

  test("a root that is drawn is not known until the engine says it", () => {
    const { agreement, hear } = listening();
    hear(stored(drawn, tokensOf(1)));
    expect(agreement.state).toBe("learning");
    hear(named(drawn.root));
    hear(stored(drawn, tokensOf(9)));
    expect(agreement.formFor(NOT_APART)?.[0]).toEqual(drawn);
    expect(agreement.named).toEqual({ namespace: NAMESPACE, shards: 2, groups: [3] });
  });

  test("a prompt whose beginning was told of long ago teaches it by its hashes", async () => {
    const { agreement, hear } = listening();
    hear(named(drawn.root));
    await agreement.expect(tokensOf(1), SIZE);
    hear(stored(drawn, tokensOf(1000), { skip: 2 }));
    expect(agreement.state).toBe("learning");
    hear(stored(drawn, tokensOf(1), { skip: 2 }));
    expect(agreement.formFor(NOT_APART)?.[0]).toEqual(drawn);
  });

  test.each<Tagging>(["bare", "tagged"])("salts and adapters are %s once a salt was", (tagging) => {
    const { agreement, hear } = listening();
    const apart = { adapter: null, salt: "team" };
    const adapter = { adapter: { name: "a", path: "/a" }, salt: null };
    hear(stored(usual, tokensOf(1), { apart, tagging }));
    hear(stored(usual, tokensOf(1)));
    expect([agreement.formFor(apart), agreement.formFor(adapter)]).toEqual([null, null]);
    hear(stored(usual, tokensOf(1), { apart, tagging }));
    expect(agreement.formFor(apart)).toEqual([usual, tagging]);
    expect(agreement.formFor(adapter)).toEqual([usual, tagging]);
    expect(agreement.form).toBe(`${algorithm} ${tagging}`);
  });

  test("one that differs at its first prompt is never asked for, and that is said once", () => {
    const { agreement, lines, hear } = listening();
    hear(named(drawn.root));
    for (let n = 0; n < 3; n += 1) hear(stored(usual, tokensOf(n)));
    // Known after all: the usual seed, whatever it says.
    expect(agreement.state).toBe("agreed");
    agreement.forget();
    hear(named(drawn.root));
    const other = { algorithm, root: digest("another root") };
    for (let n = 0; n < 3; n += 1) hear(stored(other, tokensOf(n)));
    expect(agreement.state).toBe("off");
    expect(agreement.formFor(NOT_APART)).toBeNull();
    expect(lines.filter((line) => line.includes("not asked"))).toHaveLength(1);
    for (let n = 0; n < 3; n += 1) hear(stored(usual, tokensOf(n)));
    expect(agreement.state).toBe("off");
  });

  test("one that differs later is found by the share that is checked", () => {
    const { agreement, lines, hear } = listening();
    hear(stored(usual, tokensOf(1)));
    for (let n = 0; n <= GATEWAY_HASH_CHECK_EVERY; n += 1) {
      hear(stored(drawn, tokensOf(n)));
    }
    expect(agreement.state).toBe("off");
    expect(lines.filter((line) => line.includes("not asked"))).toHaveLength(1);
  });

  test("another process begins anew", () => {
    const { agreement, hear } = listening();
    hear(named(usual.root));
    hear(stored(usual, tokensOf(1)));
    agreement.forget();
    expect([agreement.state, agreement.form, agreement.named]).toEqual(["learning", "", null]);
    hear(named(drawn.root));
    hear(stored(drawn, tokensOf(1)));
    expect(agreement.formFor(NOT_APART)?.[0]).toEqual(drawn);
  });
});

test("another name takes the place of the first, with its groups; none ends it", () => {
  const { agreement, hear } = listening();
  const root = digest("root");
  const other = digest("another");
  for (const group of [0, 1]) hear(named(root, group, 1));
  expect(agreement.named).toEqual({ namespace: NAMESPACE, shards: 1, groups: [0, 1] });
  hear(named(root, 1, 2, other));
  expect(agreement.named).toEqual({ namespace: other, shards: 2, groups: [1] });
  hear(naming([], SIZE, 1));
  expect(agreement.named).toBeNull();
});

test("a form is resumed by the next gateway", () => {
  const usual = { algorithm: "sha256" as const, root: rootOf("sha256", DEFAULT_SEED) };
  const { agreement, hear } = listening();
  expect(agreement.save()).toBeNull();
  hear(stored(usual, tokensOf(1)));
  const next = listening();
  next.agreement.resume(agreement.save()!);
  expect(next.agreement.formFor(NOT_APART)).toEqual(agreement.formFor(NOT_APART));
});

test("pictures say nothing of the form", () => {
  const usual = { algorithm: "sha256" as const, root: rootOf("sha256", DEFAULT_SEED) };
  const { agreement, hear } = listening();
  hear(named(usual.root));
  const event = stored(usual, tokensOf(1));
  const hashes = event["block_hashes"] as bigint[];
  const pictured = {
    ...event,
    block_hashes: hashes.map(() => 7n),
    extra_keys: hashes.map(() => ["digest", 0]),
  };
  hear(pictured);
  expect(agreement.state).toBe("learning");
  hear(event);
  hear(pictured);
  expect(agreement.state).toBe("agreed");
});

test.each([
  ["no namespace", ["tierkv", "ab", 1, "cd".repeat(32)]],
  ["no root", ["tierkv", "ab".repeat(32), 1]],
  ["no shards", ["tierkv", "ab".repeat(32), 0, "cd".repeat(32)]],
  ["shards without end", ["tierkv", "ab".repeat(32), 1e9, "cd".repeat(32)]],
])("a name of %s is none", (_what, [, ...name]) => {
  const { agreement, hear } = listening();
  hear(named(digest("root")));
  hear(naming(name, SIZE));
  expect(agreement.named).toBeNull();
});
