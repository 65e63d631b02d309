// Owns the proof that the tables of docs/fidelity.md equal the ones that its scripts kept.
import { readdirSync, readFileSync } from "node:fs";
import { expect, test } from "vitest";

const RENEW = "npx vitest run -c test/vitest.config.ts test/engine/fidelity.test.ts -u";
const PAGE = new URL("../../docs/fidelity.md", import.meta.url);
const KEPT = new URL("../../bench/results/fidelity/", import.meta.url);
const PLACE = /(<!-- table (\S+) -->\n)[^]*?(<!-- end -->)/g;

test(`tables of docs/fidelity.md are current; renew them with \`${RENEW}\``, async () => {
  const page = readFileSync(PAGE, "utf8");
  const used: string[] = [];
  const rendered = page.replaceAll(PLACE, (_all, before: string, name: string, after: string) => {
    used.push(`${name}.md`);
    return `${before}\n${readFileSync(new URL(`${name}.md`, KEPT), "utf8")}\n${after}`;
  });
  expect(used.toSorted()).toEqual(readdirSync(KEPT).toSorted());
  await expect(rendered).toMatchFileSnapshot("../../docs/fidelity.md");
});
