// Owns the proof that an audit reports the blocks that vaults hold, from any vault of a pool, without silent vaults and quarantined names.
import { expect, test } from "vitest";
import { HASH_BYTES, toNamespace } from "../../../src/base/block.ts";
import { createLogger } from "../../../src/base/log.ts";
import { newSidecarCounters } from "../../../src/base/metrics.ts";
import { audit } from "../../../src/sidecar/restore/audit.ts";
import type { LookupGate } from "../../../src/sidecar/vaults/vaults.ts";

const NAMESPACE = toNamespace(Buffer.alloc(32, 7));
const HASHES = Buffer.concat([1, 2, 3].map((byte) => Buffer.alloc(HASH_BYTES, byte)));
const QUESTION = {
  t: "audit" as const,
  n: 9,
  groups: [{ group: 0, class: "kv" as const, hashes: HASHES, from: 0 }],
};

/** Makes a vault that answers with these bits; null: no answer. */
function vault(bits: number | null): LookupGate {
  const itself = {};
  const find = () =>
    bits === null
      ? Promise.reject(new Error("down"))
      : Promise.resolve([{ source: itself, keys: Buffer.from([bits]), cost: null }]);
  const isItself = (source: object): boolean => source === itself;
  return { address: "vault", find, isItself } as unknown as LookupGate;
}

async function bitsOf(vaults: readonly LookupGate[], isQuarantined = false): Promise<number> {
  const answer = await audit(QUESTION, {
    namespace: NAMESPACE,
    shards: 1,
    gates: { kv: vaults, ssm: [] },
    quarantine: { has: () => isQuarantined },
    counters: newSidecarCounters(),
    logger: createLogger("test", { level: "silent" }),
  });
  if (answer.t !== "audited") throw new Error(`answered ${answer.t}`);
  expect(answer.n).toBe(9);
  return answer.groups[0]?.held[0] ?? -1;
}

test("a block in any vault of a pool is held", async () => {
  expect(await bitsOf([vault(0b001), vault(0b100)])).toBe(0b101);
});

test("a vault that does not answer holds nothing, and the others are heard", async () => {
  expect(await bitsOf([vault(null), vault(0b010)])).toBe(0b010);
  expect(await bitsOf([vault(null)])).toBe(0);
});

test("nothing is held under a distrusted name, nor without a vault", async () => {
  expect(await bitsOf([vault(0b111)], true)).toBe(0);
  expect(await bitsOf([])).toBe(0);
});

test("an audit of a pool counts no gap and no moved block: each vault is asked for all", async () => {
  const pool = [vault(0b001), vault(0b100), vault(0b110)].map((gate) =>
    Object.assign(gate, { holes: 0, moved: 0, state: "up" as const }),
  );
  expect(await bitsOf(pool)).toBe(0b111);
  expect(pool.map(({ holes, moved }) => [holes, moved])).toEqual([
    [0, 0],
    [0, 0],
    [0, 0],
  ]);
});
