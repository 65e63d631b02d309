// Owns the proof that a pulled cable, and addresses that do not lead to the vault, cost no block; in network namespaces of its own.
import { execFile, spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, test } from "vitest";

const SCENE = fileURLToPath(new URL("../../bench/lib/rails-scene.js", import.meta.url));
const BLOCKS = 8;
const TRY =
  "ip link add x0 type veth peer name x1 && tc qdisc add dev x0 root tbf rate 1mbit burst 2kb latency 9ms";

interface Scene {
  /** As the client found them: both cables, one that is not plugged in, one to another vault. */
  ways: { isOpen: boolean }[];
  /** Bytes over each cable, and those of the records. */
  carried: { saved: number[]; restored: number[]; each: number };
  cuts: { missed: number; found: number }[];
  ended: { over: number; refused: number };
}

test("F85 the cable of calls is pulled in the middle of a restore over two", async () => {
  if (spawnSync("unshare", ["-rn", "sh", "-c", TRY]).status !== 0) {
    process.stderr.write("skipped: this machine does not let us make network namespaces\n");
    return;
  }
  const asked = JSON.stringify({ paces: [100, 200], blocks: BLOCKS, rounds: 1, cuts: [0] });
  const { stdout } = await promisify(execFile)("unshare", ["-rn", process.execPath, SCENE, asked]);
  const { ways, carried, cuts, ended } = JSON.parse(stdout) as Scene;
  expect(ways.map(({ isOpen }) => isOpen)).toEqual([true, true, false, false]);
  for (const bytes of [...carried.saved, ...carried.restored]) {
    expect(bytes).toBeGreaterThan(carried.each / 10);
  }
  expect(cuts).toMatchObject([{ missed: 0, found: BLOCKS }]);
  expect(ended).toMatchObject({ over: 2, refused: 0 });
});
