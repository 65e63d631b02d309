// Owns the proof that there is a manual page for every command, which man reads without a word, and that help fits 80 columns.
import { execFileSync, spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { runInside } from "../../support/command-line.ts";

const COLUMNS = 80;
const dir = mkdtempSync(join(tmpdir(), "tierkv-manual-"));
let pages: string[] = [];

beforeAll(async () => {
  await runInside(["man", "--folder", dir]);
  pages = readdirSync(dir);
});

afterAll(() => rmSync(dir, { recursive: true }));

/** Every command, as it is typed: each has a page. */
const commands = (): string[][] =>
  pages.map((name) => name.replace(/\.1$/, "").split("-").slice(1));

test("every command has a page, and help of each fits 80 columns and gives an example", async () => {
  expect(commands()).toContainEqual(["gateway", "drain"]);
  expect(commands().length).toBeGreaterThan(30);
  for (const command of commands()) {
    const { exitCode, stdout } = await runInside([...command, "--help"]);
    expect([exitCode, command]).toEqual([0, command]);
    const wide = stdout.split("\n").filter((line) => line.length > COLUMNS);
    expect(wide, command.join(" ")).toEqual([]);
    if (command.length > 0) expect(stdout).toContain("Example:\n  tierkv ");
    const [usage = ""] = stdout.split("\n\n");
    const explained = stdout.split("\nArguments:\n")[1]?.split("\n\n")[0] ?? "";
    for (const [, name = ""] of usage.matchAll(/(?<!-\S+ )[<[]([a-z]+)(?:\.\.\.)?[>\]]/g))
      if (!["options", "command"].includes(name))
        expect(explained).toMatch(new RegExp(`^  ${name} +\\S`, "m"));
  }
});

test("a page says what help says", async () => {
  const { stdout } = await runInside(["man", "vault"]);
  expect(stdout).toBe(readFileSync(join(dir, "tierkv-vault.1"), "utf8"));
  expect(stdout).toContain("tierkv\\-vault \\- serve a vault on this machine");
  expect(stdout).toMatch(/^\.B \\-\\-role <role>$/m);
  expect(stdout).toContain("one of kv_cold, ssm_cold, cold");
  expect(stdout).toMatch(/^\.BR tierkv \(1\)$/m);
  const unknown = await runInside(["man", "vualt"]);
  expect([unknown.exitCode, unknown.stderr]).toEqual([
    2,
    'tierkv: there is no command "vualt" (USAGE)\n',
  ]);
});

function hasGroff(): boolean {
  try {
    execFileSync("groff", ["--version"], { stdio: "pipe" });
    return true;
  } catch {
    return false;
  }
}

describe.skipIf(!hasGroff())("groff", () => {
  test("has no warning for any page", () => {
    for (const page of pages) {
      const args = ["-c", 'groff -man -Tutf8 -ww -z "$1" 2>&1', "sh", join(dir, page)];
      expect(execFileSync("sh", args, { encoding: "utf8" }), page).toBe("");
    }
  });
});

test("pages are for everybody, and a folder that cannot be made ends in an error", async () => {
  const folder = join(dir, "a", "b");
  expect((await runInside(["man", "--folder", folder])).exitCode).toBe(0);
  const usual = join(dir, "usual");
  mkdirSync(usual);
  expect(statSync(folder).mode).toBe(statSync(usual).mode);
  rmSync(usual, { recursive: true });
  rmSync(join(dir, "a"), { recursive: true });
  // In a process of its own, because a loop would hold this one.
  const argv = ["bin/tierkv.js", "man", "--folder", "/proc/none/d"];
  const { status, stderr } = spawnSync(process.execPath, argv, { timeout: 20_000 });
  expect([status, String(stderr)]).toEqual([1, expect.stringContaining("ENOENT")]);
});
