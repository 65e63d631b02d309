// Owns the files of the page, read once from beside the program.
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { shipped } from "../base/shipped.ts";

export interface PageFile {
  type: string;
  body: Buffer;
}

const FOLDER = shipped("page");
const TYPES: Readonly<Record<string, string>> = {
  html: "text/html; charset=utf-8",
  css: "text/css; charset=utf-8",
  js: "text/javascript; charset=utf-8",
  svg: "image/svg+xml",
};
const OWN = [
  "index.html",
  "page.css",
  "page.js",
  "language.js",
  "tables.js",
  "charts.js",
  "icon.svg",
] as const;
const CHARTS = ["uPlot.esm.js", "uPlot.min.css"] as const;

/** Returns the files by the path that a browser asks for. */
export function readPageFiles(): ReadonlyMap<string, PageFile> {
  const files = new Map<string, PageFile>();
  for (const name of OWN) files.set(`/${name}`, read(FOLDER, name));
  for (const name of CHARTS) files.set(`/uplot/${name}`, read(chartsFolder(), name));
  const index = files.get("/index.html");
  if (index !== undefined) files.set("/", index);
  return files;
}

/** A package has the chart library beside the page, a checkout among its packages. */
function chartsFolder(): string {
  const packaged = join(FOLDER, "uplot");
  return existsSync(packaged)
    ? packaged
    : dirname(createRequire(import.meta.url).resolve("uplot/dist/uPlot.esm.js"));
}

function read(folder: string, name: string): PageFile {
  const type = TYPES[name.slice(name.lastIndexOf(".") + 1)] ?? "application/octet-stream";
  return { type, body: readFileSync(join(folder, name)) };
}
