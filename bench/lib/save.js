// Owns what a saved run leaves behind: its entries of the committed baseline, and their tables in docs/performance.md.
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { machineLine } from "./machine.js";
import { at } from "./paths.js";
import { markdownLines } from "./report.js";

const BASELINE = "bench/baseline.json";
const PAGE = "docs/performance.md";
const BEGIN = "<!-- bench: from here on written by `npm run bench -- --save` -->";
const END = "<!-- bench: up to here -->";
const NEW_PAGE = "# Performance\n";

/** Writes both; returns their paths. Benches that did not run keep the entries of an earlier run; `order` is that of the page. */
export function save({ command, machine, results }, order) {
  const fresh = results.map((result) => ({ ...result, command, machine }));
  const isFresh = ({ bench }) => fresh.some((entry) => entry.bench === bench);
  const kept = readBaseline().filter((entry) => !isFresh(entry) && order.includes(entry.bench));
  const place = ({ bench }) => order.indexOf(bench);
  const entries = [...kept, ...fresh].sort((a, b) => place(a) - place(b));
  writeFileSync(at(BASELINE), `${JSON.stringify({ results: entries }, null, 2)}\n`);
  execFileSync(at("node_modules", ".bin", "oxfmt"), [at(BASELINE)]);
  const page = existsSync(at(PAGE)) ? readFileSync(at(PAGE), "utf8") : NEW_PAGE;
  writeFileSync(at(PAGE), withSection(page, section(entries)));
  return [BASELINE, PAGE];
}

function readBaseline() {
  return existsSync(at(BASELINE)) ? JSON.parse(readFileSync(at(BASELINE), "utf8")).results : [];
}

/** The page with its measured section replaced, or added at the end. */
function withSection(page, text) {
  const marked = `${BEGIN}\n\n${text}\n\n${END}`;
  const [before, rest] = page.split(BEGIN);
  if (rest === undefined) return `${page.trimEnd()}\n\n${marked}\n`;
  const after = rest.split(END)[1] ?? "";
  return `${before}${marked}${after}`;
}

function section(entries) {
  const tables = entries.map((entry) => {
    const [head, ...lines] = markdownLines(entry);
    const where = `\`${entry.command}\` on ${machineLine(entry.machine)}.`;
    return [head, "", where, ...lines].join("\n");
  });
  const intro = [
    "## Measured",
    "",
    "Medians with their range; a ratio is the median of the ratios round by round within one run. A figure below its floor",
    "is marked MISS.",
  ];
  return [intro.join("\n"), ...tables].join("\n\n");
}
