// Owns the proof that vaults are asked where it matters and for no longer than a decision waits, whatever they answer.
import { expect, onTestFinished, test, vi } from "vitest";
import {
  HASH_BYTES,
  keyAt,
  keyCount,
  newBitmap,
  PACKED_KEY_BYTES,
  setBit,
} from "../../../src/base/block.ts";
import {
  GATEWAY_FOUND_BLOCKS_MAX,
  GATEWAY_FOUND_MS,
  GATEWAY_LOOKUP_AGAIN_MS,
  GATEWAY_LOOKUP_KEYS_MAX,
  GATEWAY_LOOKUPS_MAX,
} from "../../../src/base/limits/gateway.ts";
import { Agreement } from "../../../src/gateway/hashes/agreement.ts";
import {
  DEFAULT_SEED,
  hashesOf,
  hashOfBlock,
  lowOf,
  NOT_APART,
  rootOf,
} from "../../../src/gateway/hashes/forms.ts";
import { BlockIndex } from "../../../src/gateway/index/index-of-blocks.ts";
import { Lookups } from "../../../src/gateway/vaults/lookups.ts";
import type {
  AskedPrompt,
  AskedVault,
  LookupOutcome,
} from "../../../src/gateway/vaults/lookups.ts";
import { SILENT } from "../../support/gateways.ts";
import { batchOf, naming, stored } from "../../support/kv-batches.ts";
import type { Wire } from "../../support/kv-batches.ts";
import { digest } from "../../support/records.ts";

const SIZE = 16;
/** More shards of a block are no name. */
const SHARDS_MAX = 1_024;
const BASE = { algorithm: "sha256_cbor" as const, root: rootOf("sha256_cbor", DEFAULT_SEED) };
const NAMESPACE = digest("engines that share");
const tokensOf = (seed: number, blocks = 40): number[] =>
  Array.from({ length: blocks * SIZE + 1 }, (_none, at) => seed * 100_000 + at);

/** Answers what it is told to hold; counts questions. */
class FakeVault implements AskedVault {
  readonly address = "fake";
  readonly held = new Set<string>();
  asked: Buffer[] = [];
  isOpen = false;
  answer: ((keys: Buffer) => Promise<Buffer>) | null = null;

  lookup(_namespace: Buffer, keys: Buffer): Promise<Buffer> {
    this.asked.push(keys);
    if (this.answer !== null) return this.answer(keys);
    const bitmap = newBitmap(keyCount(keys));
    for (let at = 0; at < keyCount(keys); at += 1) {
      if (this.held.has(keyAt(keys, at).toString("hex"))) setBit(bitmap, at);
    }
    return Promise.resolve(bitmap);
  }

  /** Blocks from..to of a prompt, with these shards. */
  async holds(tokens: readonly number[], from: number, to: number, shards = [0]): Promise<void> {
    const hashes = await hashesOf(BASE, tokens, SIZE, [NOT_APART, "bare"]);
    for (let at = from; at < to; at += 1) {
      for (const shard of shards) {
        const key = Buffer.alloc(PACKED_KEY_BYTES);
        hashes.copy(key, 0, at * HASH_BYTES, (at + 1) * HASH_BYTES);
        key.writeUInt16LE(shard, HASH_BYTES + 2);
        this.held.add(key.toString("hex"));
      }
    }
  }
}

/** What an engine publishes of its name, and of a prompt. */
type Telling = readonly Wire[];

const nameOf = (shards: number, namespace: Buffer): Wire =>
  naming([namespace.toString("hex"), shards, BASE.root.toString("hex")], SIZE);

/** An engine whose name and form are known. */
function agreed(shards = 1, namespace = NAMESPACE): Telling {
  const tokens = tokensOf(9, 1).slice(0, SIZE);
  const hash = lowOf(hashOfBlock(BASE, BASE.root, tokens, [0, SIZE])!);
  return [nameOf(shards, namespace), stored(hash, null, tokens)];
}

interface Given {
  vaults: readonly FakeVault[];
  lookupMs?: number;
  engines?: readonly Telling[];
}

interface Bench {
  index: BlockIndex;
  agreements: readonly Agreement[];
  tell(engine: number, ...events: Telling): void;
  outcomes: LookupOutcome[];
  ask(tokens: readonly number[], held?: readonly number[]): Promise<boolean>;
  /** How many blocks each engine has or can pull. */
  reach(tokens: readonly number[]): Promise<number[]>;
}

function bench({ vaults, lookupMs = 60_000, engines = [agreed(), agreed()] }: Given): Bench {
  const index = new BlockIndex(engines.length);
  const outcomes: LookupOutcome[] = [];
  const all = engines.map((_telling, at) => at);
  const agreements = all.map((at) => new Agreement("e", SILENT, index, at));
  const tell = (at: number, ...events: Telling): void => {
    const report = index.apply(at, batchOf(...events));
    if (report !== null) agreements[at]!.hear(report);
  };
  for (const [at, telling] of engines.entries()) {
    index.trust(at, true);
    tell(at, ...telling);
  }
  const onOutcome = (outcome: LookupOutcome): void => void outcomes.push(outcome);
  const lookups = new Lookups({ vaults: () => vaults, index, lookupMs, onOutcome, logger: SILENT });
  const hashed = (tokens: readonly number[]): Promise<Buffer> =>
    hashesOf(BASE, tokens, SIZE, [NOT_APART, "bare"]);
  return {
    index,
    agreements,
    tell,
    outcomes,
    async ask(tokens, held = all.map(() => 0)) {
      const hashes = await hashed(tokens);
      const asking: AskedPrompt["engines"] = agreements.map((agreement, holder) => ({
        holder,
        agreement,
        hashes,
        held: held[holder]!,
        reach: held[holder]!,
      }));
      return lookups.ask({ tokens: tokens.length, tenant: 0, blockSize: SIZE, engines: asking });
    },
    async reach(tokens) {
      const blocks = await hashed(tokens);
      const view = { blocks, areNames: false, unit: SIZE, tokens: tokens.length };
      return index.spans(all, all, view).map((span) => span.reach / SIZE);
    },
  };
}

test("what a vault holds of a prompt can be pulled by each engine of that namespace, asked for once", async () => {
  const vault = new FakeVault();
  const tokens = tokensOf(1);
  await vault.holds(tokens, 0, 30);
  const { ask, reach, outcomes } = bench({ vaults: [vault] });
  expect(await ask(tokens)).toBe(true);
  expect(await reach(tokens)).toEqual([30, 30]);
  expect(vault.asked).toHaveLength(1);
  expect(keyCount(vault.asked[0]!)).toBe(40);
  expect(outcomes).toEqual(["found"]);
});

test("an engine that ends takes nothing from others of its namespace", async () => {
  const vault = new FakeVault();
  const tokens = tokensOf(1);
  await vault.holds(tokens, 0, 30);
  const { ask, reach, index } = bench({ vaults: [vault] });
  await ask(tokens);
  index.clear(0);
  index.trust(0, false);
  expect(await reach(tokens)).toEqual([0, 30]);
  index.clear(1);
  expect(index.foundBlocks).toBe(0);
});

test("engines of another namespace are asked for apart, and pull nothing of it", async () => {
  const vault = new FakeVault();
  const tokens = tokensOf(1);
  await vault.holds(tokens, 0, 30);
  const other = agreed(1, digest("another namespace"));
  const { ask, index } = bench({ vaults: [vault], engines: [agreed(), other] });
  vault.answer = (keys) => Promise.resolve(newBitmap(keyCount(keys)));
  expect(await ask(tokens)).toBe(false);
  expect(vault.asked).toHaveLength(2);
  expect(index.foundBlocks).toBe(0);
});

test("a block counts once all its shards lie somewhere", async () => {
  const [one, two] = [new FakeVault(), new FakeVault()];
  const tokens = tokensOf(1);
  await one.holds(tokens, 0, 30, [0]);
  await two.holds(tokens, 0, 20, [1]);
  const { ask, reach } = bench({ vaults: [one, two], engines: [agreed(2)] });
  expect(await ask(tokens)).toBe(true);
  expect(await reach(tokens)).toEqual([20]);
});

test("a prompt of many shards is asked for in part", async () => {
  const vault = new FakeVault();
  const { ask } = bench({ vaults: [vault], engines: [agreed(SHARDS_MAX)] });
  await ask(tokensOf(1, 100));
  expect(keyCount(vault.asked[0]!)).toBe(GATEWAY_LOOKUP_KEYS_MAX);
});

test("only what no engine reaches is asked for, and nothing where an engine holds almost all", async () => {
  const vault = new FakeVault();
  const { ask } = bench({ vaults: [vault] });
  await ask(tokensOf(1), [10 * SIZE, 5 * SIZE]);
  expect(keyCount(vault.asked[0]!)).toBe(35);
  await ask(tokensOf(2), [0, 30 * SIZE]);
  await ask(tokensOf(3, 10));
  expect(vault.asked).toHaveLength(1);
});

test("the same is not asked again at once, and again later", async () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  onTestFinished(() => void vi.useRealTimers());
  const vault = new FakeVault();
  const { ask } = bench({ vaults: [vault] });
  for (let n = 0; n < 3; n += 1) await ask(tokensOf(1));
  expect(vault.asked).toHaveLength(1);
  vi.advanceTimersByTime(GATEWAY_LOOKUP_AGAIN_MS + 1);
  await ask(tokensOf(1));
  expect(vault.asked).toHaveLength(2);
});

test("what a vault said is believed for a while, and no longer", async () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  onTestFinished(() => void vi.useRealTimers());
  const vault = new FakeVault();
  const tokens = tokensOf(1);
  await vault.holds(tokens, 0, 30);
  const { ask, reach } = bench({ vaults: [vault] });
  await ask(tokens);
  expect(await reach(tokens)).toEqual([30, 30]);
  vi.advanceTimersByTime(GATEWAY_FOUND_MS + 1);
  expect(await reach(tokens)).toEqual([0, 0]);
});

test("an answer that comes too late is for the next decision", async () => {
  const vault = new FakeVault();
  const tokens = tokensOf(1);
  let open: (bitmap: Buffer) => void = () => {};
  vault.answer = (): Promise<Buffer> => new Promise((resolve) => (open = resolve));
  const { ask, reach, outcomes } = bench({ vaults: [vault], lookupMs: 1 });
  expect(await ask(tokens)).toBe(false);
  expect(await reach(tokens)).toEqual([0, 0]);
  open(Buffer.alloc(5, 0xff));
  await vi.waitFor(() => expect(outcomes).toEqual(["late"]));
  expect(await reach(tokens)).toEqual([40, 40]);
});

test("a vault that never answers holds up neither a decision nor the others, and not without end", async () => {
  const [silent, vault] = [new FakeVault(), new FakeVault()];
  silent.answer = () => new Promise(() => {});
  const { ask, reach } = bench({ vaults: [silent, vault], lookupMs: 1 });
  for (let n = 0; n < 2 * GATEWAY_LOOKUPS_MAX; n += 1) {
    await vault.holds(tokensOf(n), 0, 30);
    await ask(tokensOf(n));
  }
  expect(await reach(tokensOf(0))).toEqual([30, 30]);
  expect(silent.asked).toHaveLength(GATEWAY_LOOKUPS_MAX);
});

test.each([
  ["rejects", (): Promise<Buffer> => Promise.reject(new Error("no"))],
  [
    "throws",
    (): Promise<Buffer> => {
      throw new Error("no");
    },
  ],
])("a vault that %s is none, and the others count", async (_what, answer) => {
  const [broken, vault] = [new FakeVault(), new FakeVault()];
  let hasFailed = (): void => {};
  const failed = new Promise<void>((resolve) => {
    hasFailed = resolve;
  });
  broken.answer = () => {
    hasFailed();
    return answer();
  };
  await vault.holds(tokensOf(1), 0, 30);
  vault.answer = async (keys) => {
    await failed;
    vault.answer = null;
    return vault.lookup(NAMESPACE, keys);
  };
  const { ask, reach, outcomes } = bench({ vaults: [broken, vault] });
  expect(await ask(tokensOf(1))).toBe(true);
  expect(await reach(tokensOf(1))).toEqual([30, 30]);
  expect(outcomes).toEqual(["found"]);
});

test("a vault that says it holds everything, or answers too much or too little, ends nothing", async () => {
  const vault = new FakeVault();
  const { ask, index, outcomes } = bench({ vaults: [vault] });
  for (const [n, bytes] of [0, 1, 1000].entries()) {
    vault.answer = () => Promise.resolve(Buffer.alloc(bytes, 0xff));
    await ask(tokensOf(n));
  }
  expect(outcomes).toEqual(["nothing", "found", "found"]);
  expect(index.foundBlocks).toBe(8 + 40);
});

test("one whose breaker is open is not asked", async () => {
  const vault = new FakeVault();
  vault.isOpen = true;
  const { ask, outcomes } = bench({ vaults: [vault] });
  expect(await ask(tokensOf(1))).toBe(false);
  expect([vault.asked, outcomes]).toEqual([[], []]);
});

test("a prompt on its way shows how an engine hashes, whatever the engine reported before", async () => {
  const vault = new FakeVault();
  const { ask, agreements, tell } = bench({ vaults: [vault], engines: [[nameOf(1, NAMESPACE)]] });
  const [learning] = agreements;
  const formOf = (): unknown => learning!.formFor(NOT_APART);
  expect(formOf()).toBeNull();
  await learning!.expect(tokensOf(1), SIZE);
  // Its hashes come back, without those of its beginning.
  const hashes = await hashesOf(BASE, tokensOf(1), SIZE, [NOT_APART, "bare"]);
  const [parent, hash] = [8, 9].map((at) => lowOf(hashes.subarray(at * 32, (at + 1) * 32)));
  tell(0, stored(hash!, parent!, tokensOf(1).slice(9 * SIZE, 10 * SIZE)));
  expect(formOf()).not.toBeNull();
  await ask(tokensOf(2));
  expect(vault.asked).toHaveLength(1);
});

test("what vaults hold takes no more memory than it may", async () => {
  const vault = new FakeVault();
  vault.answer = (keys) => Promise.resolve(Buffer.alloc(keyCount(keys), 0xff));
  const { ask, index } = bench({ vaults: [vault] });
  for (let n = 0; n < 33; n += 1) await ask(tokensOf(n, 4096));
  expect(index.foundBlocks).toBe(GATEWAY_FOUND_BLOCKS_MAX);
});
