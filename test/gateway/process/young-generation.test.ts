// Owns the proof that V8's memory for new objects stays bounded under the load that would make it grow, and grows again after quiet times, in each Node that runs this.
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { expect, test } from "vitest";
import { GATEWAY_YOUNG_BYTES } from "../../../src/base/limits/gateway.ts";

/** Makes objects of which many live a while; prints the most memory for new ones, that after V8 made it small, and the most after more such objects. */
const LOAD = `
  import { Session } from "node:inspector/promises";
  const { boundYoungGeneration, youngBytes } = await import(process.argv[1]);
  if (process.argv[2] === "bounded") boundYoungGeneration();
  async function load() {
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
    return most;
  }
  const before = await load();
  const session = new Session();
  session.connect();
  await session.post("HeapProfiler.collectGarbage");
  const small = youngBytes();
  session.disconnect();
  console.log(JSON.stringify({ before, small, after: await load() }));`;

function bytesOf(how: string): { before: number; small: number; after: number } {
  const file = join(import.meta.dirname, "../../../dist/gateway/process/young-generation.js");
  const argv = ["--input-type=module", "-e", LOAD, file, how];
  return JSON.parse(execFileSync("node", argv, { encoding: "utf8" })) as ReturnType<typeof bytesOf>;
}

test("memory for new objects grows to its bound and no further, before and after quiet times", () => {
  expect(bytesOf("unbounded").before).toBeGreaterThan(2 * GATEWAY_YOUNG_BYTES);
  const { before, small, after } = bytesOf("bounded");
  expect(small).toBeLessThan(GATEWAY_YOUNG_BYTES);
  for (const most of [before, after]) {
    expect(most).toBeGreaterThanOrEqual(GATEWAY_YOUNG_BYTES);
    expect(most).toBeLessThanOrEqual(2 * GATEWAY_YOUNG_BYTES);
  }
});
