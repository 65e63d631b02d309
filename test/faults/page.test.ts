// Owns the proof that docs/reliability.md says what the tables say.
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { renderReliabilityPage } from "../support/reliability-page.ts";
import { REPLAYS } from "./replays.ts";

test("docs/reliability.md is current; renew it with `npx vitest run -c test/vitest.config.ts test/faults/page.test.ts -u`", async () => {
  await expect(renderReliabilityPage()).toMatchFileSnapshot("../../docs/reliability.md");
});

test("every word that stands for a sum is known", () => {
  expect(renderReliabilityPage()).not.toMatch(/(?:^|\s)@\w/m);
});

test.each(REPLAYS.filter(({ test: its }) => its !== null))(
  "$commit: there is a test about it: $bug",
  ({ test: its }) => {
    const [file, title] = its!;
    const text = readFileSync(new URL(`../../${file}`, import.meta.url), "utf8");
    expect(text).toContain(title);
  },
);
