// Owns the rendering of results: a table for the terminal, and the same as Markdown.
import { table } from "../../dist/extras/demo/format.js";

const HEAD = ["figure", "value", "min - max", "unit", "ratio", "of", "floor", ""];

function showNumber(value) {
  if (!Number.isFinite(value)) return "-";
  if (value === 0 || Math.abs(value) >= 1000) return value.toFixed(0);
  return String(Number(value.toPrecision(3)));
}

function showFloor({ floor }) {
  if (floor === undefined) return "";
  const bound = floor.least === undefined ? `<= ${floor.most}` : `>= ${floor.least}`;
  return `${floor.on} ${bound}`;
}

function showVerdict({ isMet }) {
  if (isMet === undefined) return "";
  return isMet ? "ok" : "MISS";
}

function cells(figure) {
  const { name, unit, value, min, max, ratio, of } = figure;
  const range = min === undefined ? "" : `${showNumber(min)} - ${showNumber(max)}`;
  return [
    name,
    showNumber(value),
    range,
    unit,
    ratio === undefined ? "" : showNumber(ratio),
    of ?? "",
    showFloor(figure),
    showVerdict(figure),
  ];
}

/** Leaves out columns that are empty for all of these figures. */
function rowsOf(figures) {
  const rows = [HEAD, ...figures.map(cells)];
  const isUsed = HEAD.map((_head, column) => rows.slice(1).some((row) => row[column] !== ""));
  return rows.map((row) => row.filter((_cell, column) => isUsed[column]));
}

function notesOf({ figures, notes = [] }) {
  const own = figures.filter(({ note }) => note !== undefined);
  return [...notes, ...own.map(({ name, note }) => `${name}: ${note}`)];
}

/** Renders one bench for a terminal. */
export function textLines(result) {
  if (result.error !== undefined) return [`${result.title}: FAILED: ${result.error}`];
  const notes = notesOf(result).map((note) => `  ${note}`);
  return [result.title, ...table(rowsOf(result.figures)).map((line) => `  ${line}`), ...notes];
}

/** Renders one bench for a page. */
export function markdownLines(result) {
  const [head, ...rows] = rowsOf(result.figures);
  const line = (row) => `| ${row.map((cell) => cell.replaceAll("|", "\\|")).join(" | ")} |`;
  const rule = `|${head.map((_cell, column) => (column === 0 ? "---" : "---:")).join("|")}|`;
  const notes = notesOf(result);
  return [
    `### ${result.title}`,
    "",
    line(head),
    rule,
    ...rows.map(line),
    ...(notes.length === 0 ? [] : ["", ...notes.map((note) => `- ${note}`)]),
  ];
}
