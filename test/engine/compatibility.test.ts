// Owns the proof that docs/compatibility.md agrees with the recorded engine tests, and that none of them failed.
import { expect, test } from "vitest";
import { readResults, renderCompatibilityPage } from "../support/compatibility-page.ts";
import { gpuTable, readGpuResults } from "../support/gpu-table.ts";

const GPU = readGpuResults();

test("docs/compatibility.md is current; renew it with `npx vitest run -c test/vitest.config.ts test/engine/compatibility.test.ts -u`", async () => {
  await expect(renderCompatibilityPage(readResults(), GPU)).toMatchFileSnapshot(
    "../../docs/compatibility.md",
  );
});

test("no test on record failed", () => {
  const ends = Object.values(readResults()).flatMap((run) => Object.entries(run));
  expect(ends.filter(([, end]) => end === "failed")).toEqual([]);
});

test("a line without an outcome, or skipped, is not run, one that failed says so", () => {
  const proof = "test_ranks.py::test_two_ranks_save_and_restore_every_block_together[2]";
  expect(renderCompatibilityPage({}, GPU)).toContain(
    "| two tensor-parallel ranks | not run | not run | not run | not run | not run | not run |",
  );
  expect(renderCompatibilityPage({}, GPU)).toContain("| KVCache (Llama) | not run |");
  const page = renderCompatibilityPage(
    {
      "0.31.0": { [proof]: "skipped" },
      "0.32.0": { [proof]: "failed" },
      "0.32.0 V2": { [proof]: "passed" },
    },
    GPU,
  );
  expect(page).toContain(
    "| two tensor-parallel ranks | not run | not run | not run | not run | failed | yes |",
  );
});

test("on a GPU a restore in part says how much, and what no run has is not run", () => {
  const run = (tokens: number, restored: number | null) => ({
    tokens,
    restored: restored === null ? null : { "not computed": [tokens, restored] },
  });
  const table = gpuTable({
    ...GPU,
    engine: {
      "llama-3.1-8b": { raw: [run(8192, 8176), run(32_768, 17_664)], compilation_mode: "3" },
      "qwen3.5-9b, no vault": { cells: [run(8192, null)] },
    },
    "earlier the same day": {},
  });
  expect(table).toContain(
    "| Llama, bf16 cache, stored as it is | yes | in part: 17,664 | not run |",
  );
  expect(table).toContain("| with `torch.compile` | yes | in part: 17,664 | not run |");
  expect(table).toContain(
    "| Qwen3.5 (recurrent states and attention) | not run | not run | not run |",
  );
  expect(gpuTable(GPU)).toContain("| with `torch.compile` | not run | not run | not run |");
});
