// Owns the proof that a real bash completes commands, options and values, and that each shell's own reader takes its script.
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { SHELLS } from "../../../src/cli/shell/completion.ts";
import { runInside } from "../../support/command-line.ts";

const dir = mkdtempSync(join(tmpdir(), "tierkv-completion-"));

beforeAll(async () => {
  for (const shell of SHELLS) {
    writeFileSync(join(dir, shell), (await runInside(["completion", shell])).stdout);
  }
});

afterAll(() => rmSync(dir, { recursive: true }));

/** What bash offers behind these words, the last of which is being typed. */
function completed(...words: string[]): string[] {
  const code = [
    `source ${join(dir, "bash")}`,
    'COMP_WORDS=(tierkv "$@"); COMP_CWORD=$#; _tierkv; printf "%s\\n" "${COMPREPLY[@]}"',
  ].join("\n");
  const args = ["--norc", "-c", code, "bash", ...words];
  return execFileSync("bash", args, { cwd: dir, encoding: "utf8" }).split("\n").filter(Boolean);
}

test("commands, also those below others", () => {
  expect(completed("va")).toEqual(["vault", "vaults"]);
  expect(completed("gateway", "d")).toEqual(["drain"]);
  expect(completed("service", "uninstall", "v")).toEqual(["vault"]);
  expect(completed("help", "x")).toEqual([]);
});

test("options of the command and of the whole program", () => {
  expect(completed("vault", "--l")).toEqual(["--listen"]);
  expect(completed("plan", "--")).toEqual(
    expect.arrayContaining(["--model", "--trace", "--json", "--config", "--help"]),
  );
  expect(completed("status", "--json", "--w")).toEqual(["--watch"]);
});

test("values: one of a few, files, or nothing that could be wrong", () => {
  expect(completed("vault", "--role", "kv")).toEqual(["kv_cold"]);
  expect(completed("plan", "--trace", "ba")).toEqual(["bash"]);
  expect(completed("vault", "--listen", "")).toEqual([]);
  expect(completed("completion", "")).toEqual(expect.arrayContaining([...SHELLS]));
});

function has(program: string): boolean {
  try {
    execFileSync(program, ["--version"], { stdio: "pipe" });
    return true;
  } catch {
    return false;
  }
}

test.skipIf(!has("fish"))("fish offers the same", () => {
  const code = `source ${join(dir, "fish")}; complete -C "tierkv gateway d"`;
  const offered = execFileSync("fish", ["--no-config", "-c", code], { encoding: "utf8" });
  expect(offered).toBe("drain\tsend an engine no more requests\n");
});

test.each(SHELLS)("%s takes its script", (shell) => {
  // Where the shell is not on this machine, the script is at least whole: every quote that opens is closed.
  const reader = has(shell) ? shell : "bash";
  const script = join(dir, shell);
  if (reader === shell) {
    execFileSync(shell, ["-n", script], { stdio: "pipe" });
    return;
  }
  const text = execFileSync("cat", [script], { encoding: "utf8" });
  for (const line of text.split("\n")) {
    const quotes = line.replaceAll(/\\'|'\\''/g, "").split("'").length - 1;
    expect(quotes % 2, line).toBe(0);
  }
});
