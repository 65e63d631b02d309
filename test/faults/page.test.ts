// Owns the proof that docs/reliability.md and docs/faults.md agree with the tables.
import { expect, test } from "vitest";
import { renderFaultsPage, renderReliabilityPage } from "../support/reliability-page.ts";

const RENEW = "npx vitest run -c test/vitest.config.ts test/faults/page.test.ts -u";

test(`docs/reliability.md is current; renew it with \`${RENEW}\``, async () => {
  await expect(renderReliabilityPage()).toMatchFileSnapshot("../../docs/reliability.md");
});

test(`docs/faults.md is current; renew it with \`${RENEW}\``, async () => {
  await expect(renderFaultsPage()).toMatchFileSnapshot("../../docs/faults.md");
});

test("no row stands on a page twice", () => {
  for (const text of [renderReliabilityPage(), renderFaultsPage()]) {
    const ids = [...text.matchAll(/^\| ([FG]\d+) \|/gm)].map(([, id]) => id);
    expect(ids).toEqual([...new Set(ids)]);
  }
});

test("every word that stands for a sum is known", () => {
  expect(renderFaultsPage()).not.toMatch(/(?:^|\s)@\w/m);
});
