// Owns what a full run leaves behind: the committed baseline, and its tables in docs/performance.md.
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

/** Writes both; returns their paths. */
export function save(report) {
  writeFileSync(at(BASELINE), `${JSON.stringify(report, null, 2)}\n`);
  execFileSync(at("node_modules", ".bin", "oxfmt"), [at(BASELINE)]);
  const page = existsSync(at(PAGE)) ? readFileSync(at(PAGE), "utf8") : NEW_PAGE;
  writeFileSync(at(PAGE), withSection(page, section(report)));
  return [BASELINE, PAGE];
}

/** The page with its measured section replaced, or added at the end. */
function withSection(page, text) {
  const marked = `${BEGIN}\n\n${text}\n\n${END}`;
  const [before, rest] = page.split(BEGIN);
  if (rest === undefined) return `${page.trimEnd()}\n\n${marked}\n`;
  const after = rest.split(END)[1] ?? "";
  return `${before}${marked}${after}`;
}

function section({ command, machine, results }) {
  const tables = results.map((result) => markdownLines(result).join("\n"));
  const intro = [
    "## Measured",
    "",
    `\`${command}\` on ${machineLine(machine)}.`,
    "Medians with their range; a ratio is the median of the ratios round by round within one run. A figure below its floor",
    "is marked MISS.",
  ];
  return [intro.join("\n"), ...tables].join("\n\n");
}
