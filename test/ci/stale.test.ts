// Owns the proof that an old figure is found: its bench, or what it measures, changed by more lines than allowed since its commit.
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";

interface Figure {
  where: string;
  bench: string;
  commit: string | null;
  day: string | null;
}

const ROOT = new URL("../../", import.meta.url);
const load = async <T>(file: string): Promise<T> =>
  (await import(new URL(`bench/lib/${file}`, ROOT).href)) as T;
const { MEASURED, ownFiles } = await load<{
  MEASURED: Record<string, string[]>;
  ownFiles(bench: string): string[];
}>("measured.js");
const { figuresIn, withChanges } = await load<{
  figuresIn(text: string, page: string): Figure[];
  withChanges(figures: readonly Figure[], root: string): (Figure & { lines: number | null })[];
}>("stale.js");

test("what a bench measures lies where the table says", () => {
  const paths = Object.keys(MEASURED).flatMap((bench) => MEASURED[bench] ?? []);
  const lost = [...new Set(paths)].filter(
    (path) => !existsSync(fileURLToPath(new URL(path, ROOT))),
  );
  expect(lost).toEqual([]);
});

test("a figure takes bench and commit from its row, or from the text before its table", () => {
  const page = [
    "# Figures",
    "Measured by `lookup`, 2026-11-20, 0123abcd.",
    "| figure | value |",
    "|---|---|",
    "| of the text before, counted once with it | 1 |",
    "| of its own day | 2 | 2026-11-21 |",
    "| of its own bench and commit | 3 | 2026-11-22, 4567ef01 | `never-slower:open` |",
    "## Another section",
    "| of no bench | 4 | 2026-11-22 |",
    "| of no day | 5 | `lanes` |",
  ].join("\n");
  expect(figuresIn(page, "page.md")).toEqual([
    { where: "page.md:2", bench: "lookup", commit: "0123abcd", day: "2026-11-20" },
    { where: "page.md:6", bench: "lookup", commit: null, day: "2026-11-21" },
    { where: "page.md:7", bench: "never-slower", commit: "4567ef01", day: "2026-11-22" },
  ]);
});

test("changed lines are counted in the bench and in what it measures, since the commit or the end of the day", () => {
  const root = mkdtempSync(join(tmpdir(), "tierkv-stale-"));
  const git = (...args: string[]): string =>
    execFileSync("git", args, {
      cwd: root,
      encoding: "utf8",
      env: { ...process.env, GIT_COMMITTER_DATE: "2026-11-20T12:00:00Z" },
    }).trim();
  const write = (path: string, lines: number): void => {
    mkdirSync(join(root, path, ".."), { recursive: true });
    writeFileSync(join(root, path), Array.from({ length: lines }, (_, at) => `${at}\n`).join(""));
  };
  const commit = (): string => {
    git("add", "-A");
    git("-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "x");
    return git("rev-parse", "--short", "HEAD");
  };
  git("init", "-q");
  const [measured = ""] = MEASURED["codec"] ?? [];
  write(`${measured}/a.rs`, 10);
  write(ownFiles("codec")[0] ?? "", 10);
  const before = commit();
  write(`${measured}/a.rs`, 15);
  write(ownFiles("codec")[0] ?? "", 7);
  write("src/unmeasured.ts", 100);
  commit();
  const of = { where: "", bench: "codec" };
  const figures = [
    { ...of, commit: before, day: null },
    { ...of, commit: null, day: "2026-11-20" },
    { ...of, commit: null, day: "2026-11-19" },
    { ...of, commit: "0000000", day: null },
  ];
  expect(withChanges(figures, root).map(({ lines }) => lines)).toEqual([8, 0, null, null]);
});
