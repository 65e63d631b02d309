// Owns the proof that a pulled cable, and addresses that do not lead to the vault, cost no block; in network namespaces.
// @module-tag nightly
import { execFile, spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { describe, expect, test } from "vitest";

const SCENE = fileURLToPath(new URL("../../bench/lib/rails-scene.js", import.meta.url));
const BLOCKS = 8;
const TRY =
  "ip link add x0 type veth peer name x1 && tc qdisc add dev x0 root tbf rate 1mbit burst 2kb latency 9ms";

/** null: not possible on this machine. */
async function play(more: object): Promise<Scene | null> {
  if (spawnSync("unshare", ["-rn", "sh", "-c", TRY]).status !== 0) {
    process.stderr.write("skipped: this machine does not let us make network namespaces\n");
    return null;
  }
  const asked = JSON.stringify({
    paces: [100, 200],
    blocks: BLOCKS,
    rounds: 1,
    cuts: [0],
    ...more,
  });
  const { stdout } = await promisify(execFile)("unshare", ["-rn", process.execPath, SCENE, asked]);
  return JSON.parse(stdout) as Scene;
}

interface Scene {
  /** Rails as the client found them: both cables, one unplugged, one to another vault. */
  ways: { isOpen: boolean; local: string | null }[];
  /** Bytes over each cable, and those of the records. */
  carried: { saved: number[]; restored: number[]; each: number };
  cuts: { missed: number; found: number }[];
  ended: { over: number; refused: number };
}

const isLong = process.env["TIERKV_TEST_LONG"] === "on";

test("F85 the cable of calls is pulled in the middle of a restore over two", async () => {
  const scene = await play({});
  if (scene === null) return;
  const { ways, carried, cuts, ended } = scene;
  expect(ways.map(({ isOpen }) => isOpen)).toEqual([true, true, false, false]);
  for (const bytes of [...carried.saved, ...carried.restored]) {
    expect(bytes).toBeGreaterThan(carried.each / 10);
  }
  expect(cuts).toMatchObject([{ missed: 0, found: BLOCKS }]);
  expect(ended).toMatchObject({ over: 2, refused: 0 });
});

describe.each([
  [1, isLong || process.platform === "linux"],
  [2, isLong],
])("a host with two cables in the network of a vault with %i", (vaults, isRun) => {
  test.runIf(isRun)(
    "F110 both carry, an address that nothing leads back to is left alone, and the cable of calls is pulled",
    async () => {
      const scene = await play({ vaults });
      if (scene === null) return;
      const { ways, carried, cuts, ended } = scene;
      const open = ways.filter(({ isOpen }) => isOpen).map(({ local }) => local);
      expect(open).toHaveLength(2 * vaults);
      expect(open).not.toContain("198.18.91.1");
      for (const bytes of [...carried.saved, ...carried.restored]) {
        expect(bytes).toBeGreaterThan(carried.each / 10);
      }
      expect(cuts).toMatchObject([{ missed: 0, found: BLOCKS }]);
      expect(ended).toMatchObject({ over: 2 * vaults, refused: 0 });
    },
  );
});
