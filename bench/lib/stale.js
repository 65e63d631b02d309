// Owns the list of old figures: those whose bench, or what it measures, changed by many lines since the commit they name.
import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { MEASURED, ownFiles } from "./measured.js";
import { at } from "./paths.js";

/** Changed lines, added or removed, above which a figure is old. */
export const STALE_LINES = 200;

const DAY = /\b20\d\d-\d\d-\d\d\b/g;
const COMMIT = /\b(?=[0-9a-f]*\d)[0-9a-f]{7,40}\b/g;
const IN_BACKTICKS = /`(?:--only )?([\w/-]+)(?::[\w-]+)?[^`]*`/g;

/** Pages with figures: the results of saved runs, and the pages that people read. */
function pages(root) {
  const folder = "docs/performance";
  const more = readdirSync(`${root}/${folder}`).filter((name) => name.endsWith(".md"));
  return ["docs/performance.md", ...more.map((name) => `${folder}/${name}`), "README.md"];
}

/**
 * Returns the figures of a page: each line that names a bench and a day or a commit. A line without one takes those of the last line
 * of text before it, which introduces a table. `commit` is null where only the day is named.
 */
export function figuresIn(text, page) {
  const figures = [];
  let intro = NOTHING;
  for (const [index, line] of text.split("\n").entries()) {
    const own = namedIn(line);
    const isRow = line.startsWith("|");
    if (line.startsWith("#")) intro = NOTHING;
    else if (!isRow && (own.benches.length > 0 || isDated(own))) intro = own;
    const { benches, commit, day } = isRow ? joined(own, intro) : own;
    if (commit === null && day === null) continue;
    for (const bench of benches) {
      figures.push({ where: `${page}:${index + 1}`, bench, commit, day });
    }
  }
  return figures;
}

const NOTHING = { benches: [], commit: null, day: null };

const isDated = ({ commit, day }) => commit !== null || day !== null;

/** Returns the benches, the last commit and the first day that a line names. */
function namedIn(line) {
  const names = [...line.matchAll(IN_BACKTICKS)].map(([, name]) => name);
  const [commit = null] = (line.match(COMMIT) ?? []).slice(-1);
  const [day = null] = (line.match(DAY) ?? []).sort();
  return {
    benches: [...new Set(names.filter((name) => Object.hasOwn(MEASURED, name)))],
    commit,
    day,
  };
}

/** Completes a row by the text before its table; a row with neither a bench nor a day of its own is counted with that text. */
function joined(own, intro) {
  if (own.benches.length === 0) return isDated(own) ? { ...own, benches: intro.benches } : NOTHING;
  return isDated(own) ? own : { ...intro, benches: own.benches };
}

/** Returns the saved runs as figures. */
function savedRuns(root) {
  const folder = `${root}/bench/results`;
  const files = readdirSync(folder).filter((name) => name.endsWith(".json"));
  return files.flatMap((name) => {
    const { bench, machine } = JSON.parse(readFileSync(`${folder}/${name}`, "utf8"));
    if (typeof bench !== "string" || typeof machine?.commit !== "string") return [];
    const [commit] = machine.commit.split(" ");
    const of = bench.split(":")[0];
    if (!Object.hasOwn(MEASURED, of)) return [];
    return [{ where: `bench/results/${name}`, bench: of, commit, day: machine.date }];
  });
}

/** Returns every figure with the lines changed since its commit, or since the end of its day; null: its commit is not in the history. */
export function withChanges(figures, root = at()) {
  const git = (...args) =>
    execFileSync("git", args, { cwd: root, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
  const since = new Map();
  const changedSince = (bench, commit) => {
    const paths = [...ownFiles(bench), ...MEASURED[bench]];
    const diff = git("diff", "--numstat", "--no-renames", commit, "HEAD", "--", ...paths);
    const lines = diff.split("\n").map((line) => line.split("\t").slice(0, 2).map(Number));
    return lines.flat().reduce((sum, count) => sum + (count || 0), 0);
  };
  const changes = ({ bench, commit, day }) => {
    const name = `${bench} ${commit ?? day}`;
    if (since.has(name)) return since.get(name);
    let lines = null;
    try {
      const from = commit ?? git("rev-list", "-1", `--before=${day}T23:59:59Z`, "HEAD").trim();
      lines = from === "" ? null : changedSince(bench, from);
    } catch {
      // A shallow clone, or a commit that was never pushed.
    }
    since.set(name, lines);
    return lines;
  };
  return figures.map((figure) => ({ ...figure, lines: changes(figure) }));
}

/** Prints the old figures, the most changed first; returns their number. */
export function listStale(print, most = STALE_LINES) {
  const root = at();
  const read = pages(root).flatMap((page) =>
    figuresIn(readFileSync(`${root}/${page}`, "utf8"), page),
  );
  const all = withChanges([...savedRuns(root), ...read], root);
  const old = all.filter(({ lines }) => lines === null || lines > most);
  const size = ({ lines }) => lines ?? Number.POSITIVE_INFINITY;
  for (const { where, bench, commit, day, lines } of old.sort((a, b) => size(b) - size(a))) {
    const since = commit ?? `${day}, no commit named`;
    print(`${where}: ${bench}: ${lines ?? "unknown"} lines changed since ${since}`);
  }
  print(
    `${old.length} of ${all.length} figures are old: more than ${most} lines of their bench, or of what it measures, changed`,
  );
  return old.length;
}
