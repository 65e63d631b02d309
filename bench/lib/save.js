// Owns the files of a saved run: figures per bench, latest run only, and the page of all tables.
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { machineLine } from "./machine.js";
import { at } from "./paths.js";
import { markdownLines } from "./report.js";

const FOLDER = "bench/results";
const PAGE = `${FOLDER}/README.md`;

const fileOf = (name) => `${FOLDER}/${name.replace(":", "-")}.json`;

/** Writes the files of these results, and the page in `order`; returns their paths. */
export function save({ command, machine, results }, order) {
  mkdirSync(at(FOLDER), { recursive: true });
  const paths = results.map((result) => {
    const path = fileOf(result.bench);
    writeFileSync(at(path), JSON.stringify({ ...result, command, machine }, null, 2));
    return path;
  });
  execFileSync(
    at("node_modules", ".bin", "oxfmt"),
    paths.map((path) => at(path)),
  );
  const saved = order.map((name) => at(fileOf(name))).filter((path) => existsSync(path));
  const entries = saved.map((path) => JSON.parse(readFileSync(path, "utf8")));
  writeFileSync(at(PAGE), page(entries));
  return [...paths, PAGE];
}

function page(entries) {
  const tables = entries.map((entry) => {
    const [head, ...lines] = markdownLines(entry);
    const where = `\`${entry.command}\` on ${machineLine(entry.machine)}.`;
    return [head, "", where, ...lines].join("\n");
  });
  const intro = [
    "# Results of the benches",
    "",
    "The latest saved run of each bench, written by `npm run bench -- --only NAME --save`; the same figures lie beside this page as JSON.",
    "Medians with their range; a ratio is the median of the ratios round by round within one run. A figure below its floor",
    "is marked MISS.",
  ];
  return `${[intro.join("\n"), ...tables].join("\n\n")}\n`;
}
