// Owns the proof that docs/compatibility.md says what the engine tests found, and that nothing on record failed.
import { expect, test } from "vitest";
import { readResults, renderCompatibilityPage } from "../support/compatibility-page.ts";

test("docs/compatibility.md is current; renew it with `npx vitest run -c test/vitest.config.ts test/engine/compatibility.test.ts -u`", async () => {
  await expect(renderCompatibilityPage(readResults())).toMatchFileSnapshot(
    "../../docs/compatibility.md",
  );
});

test("no test on record failed", () => {
  const ends = Object.values(readResults()).flatMap((run) => Object.entries(run));
  expect(ends.filter(([, end]) => end === "failed")).toEqual([]);
});

test("a line without an outcome, or skipped, is not run, one that failed says so", () => {
  const proof = "test_ranks.py::test_two_ranks_save_and_restore_every_block_together[2]";
  expect(renderCompatibilityPage({})).toContain(
    "| two tensor-parallel ranks | not run | not run | not run | not run | not run | not run |",
  );
  expect(renderCompatibilityPage({})).toContain("| KVCache (Llama) | not run |");
  const page = renderCompatibilityPage({
    "0.31.0": { [proof]: "skipped" },
    "0.32.0": { [proof]: "failed" },
    "0.32.0 V2": { [proof]: "passed" },
  });
  expect(page).toContain(
    "| two tensor-parallel ranks | not run | not run | not run | not run | failed | yes |",
  );
});
