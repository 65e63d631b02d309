// Owns the proof that docs/json.md names the fields of results, as they are printed.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { runInside } from "../../support/command-line.ts";
import { renderJsonPage } from "../../support/json-page.ts";
import { openSidecar, testDirectory } from "../../support/sidecars.ts";
import { openClient, openVault } from "../../support/vaults.ts";

const PAGE = renderJsonPage();

test("docs/json.md is current; renew it with `npx vitest run -c test/vitest.config.ts test/cli/shell/call.json.test.ts -u`", async () => {
  await expect(PAGE).toMatchFileSnapshot("../../../docs/json.md");
});

test("each field on the page has a meaning, and no type is cut within its braces", () => {
  const rows = PAGE.split("\n").filter((line) => /^\| `\w+` \| `/.test(line));
  expect(rows.length).toBeGreaterThan(200);
  const cells = rows.map((row) => row.split(/(?<!\\) \| /));
  expect(cells.filter(([, , meaning = ""]) => meaning.replace(/\|$/, "").trim() === "")).toEqual(
    [],
  );
  const count = (text: string, mark: string): number => text.split(mark).length;
  expect(cells.filter(([, type = ""]) => count(type, "{") !== count(type, "}"))).toEqual([]);
});

/** Names of all fields in a value; keys of maps by address, counter or class are left out. */
function namesIn(value: unknown, under = ""): string[] {
  if (Array.isArray(value)) return value.flatMap((one) => namesIn(one, under));
  if (typeof value !== "object" || value === null) return [];
  if (["config", "counters", "times", "gapS", "storedBytes", "fidelity"].includes(under)) return [];
  return Object.entries(value).flatMap(([name, inner]) => [
    ...(["vaults", "lanes"].includes(under) && !Array.isArray(value) && /^(?:kv|ssm)$/.test(name)
      ? []
      : [name]),
    ...namesIn(inner, name),
  ]);
}

test("every field that commands print is on the page", async () => {
  const vault = await openVault();
  const sidecar = await openSidecar({ vaults: { kv: openClient(vault), ssm: null } });
  const config = join(testDirectory(), "tierkv.toml");
  const text = `[cluster]\nkv_cold = "${vault.address}"\n[sidecar]\nsocket = "${sidecar.socketPath}"\n`;
  writeFileSync(config, text);
  for (const command of [["status"], ["top"], ["vaults", "ls"], ["explain"], ["config", "check"]]) {
    const { stdout } = await runInside([...command, "--json", "--config", config]);
    const names = new Set(namesIn(JSON.parse(stdout)));
    expect(names.size, command.join(" ")).toBeGreaterThan(1);
    expect(
      [...names].filter((name) => !new RegExp(`\\b${name}\\b`).test(PAGE)),
      command.join(" "),
    ).toEqual([]);
  }
});
