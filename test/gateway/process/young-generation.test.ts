// Owns the proof that V8's memory for new objects stays bounded under the load that would make it grow, in each Node that runs this.
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { expect, test } from "vitest";
import { GATEWAY_YOUNG_BYTES } from "../../../src/base/limits/gateway.ts";

/** Makes objects of which many live a while; prints the most memory for new ones. */
const LOAD = `
  const { boundYoungGeneration, youngBytes } = await import(process.argv[1]);
  if (process.argv[2] === "bounded") boundYoungGeneration();
  let most = 0;
  let kept = [];
  for (let turn = 0; turn < 300; turn += 1) {
    for (let at = 0; at < 10_000; at += 1) {
      kept.push({ at, list: [at] });
      if (kept.length > 20_000) kept = kept.slice(10_000);
    }
    most = Math.max(most, youngBytes());
    await new Promise((resolve) => setImmediate(resolve));
  }
  console.log(most);`;

function mostBytes(how: string): number {
  const file = join(import.meta.dirname, "../../../dist/gateway/process/young-generation.js");
  const argv = ["--input-type=module", "-e", LOAD, file, how];
  return Number(execFileSync("node", argv, { encoding: "utf8" }));
}

test("memory for new objects grows to its bound and no further", () => {
  expect(mostBytes("unbounded")).toBeGreaterThan(2 * GATEWAY_YOUNG_BYTES);
  const most = mostBytes("bounded");
  expect(most).toBeGreaterThanOrEqual(GATEWAY_YOUNG_BYTES);
  expect(most).toBeLessThanOrEqual(2 * GATEWAY_YOUNG_BYTES);
});
