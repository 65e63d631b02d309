// Owns reading the repository: every file that git tracks or would track.
import { execFileSync } from "node:child_process";
import { readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

/** A file as the rules see it: its path from the repository root, with forward slashes, and its text; of a binary none. */
export interface Source {
  path: string;
  text: string;
}

/** A house rule: what it says, how it is broken (one line a breach), and examples that must be caught. */
export interface Rule {
  name: string;
  breaches(sources: readonly Source[]): string[];
  /** Each is a small repository that breaks the rule: path to text. */
  examples: readonly Readonly<Record<string, string>>[];
}

export const ROOT: string = fileURLToPath(new URL("../..", import.meta.url));

const BINARY = /\.(?:bin|png|jpg|gif|ico|woff2?|safetensors|node)$/;
const BYTES_MAX = 2_000_000;

export function readSources(): Source[] {
  const args = ["ls-files", "--cached", "--others", "--exclude-standard", "-z"];
  const listed = execFileSync("git", args, { cwd: ROOT, encoding: "utf8", maxBuffer: BYTES_MAX });
  const sources: Source[] = [];
  for (const path of listed.split("\0").filter(Boolean)) {
    const file = statSync(join(ROOT, path), { throwIfNoEntry: false });
    if (file?.isFile() !== true) continue;
    const text = BINARY.test(path) ? "" : readFileSync(join(ROOT, path), "utf8");
    sources.push({ path, text });
  }
  return sources;
}

export function fromExample(example: Readonly<Record<string, string>>): Source[] {
  return Object.entries(example).map(([path, text]) => ({ path, text }));
}

/** Sources below a folder with one of the endings, such as `under(all, "src/", ".ts")`. */
export function under(sources: readonly Source[], folder: string, ...endings: string[]): Source[] {
  const isWanted = ({ path }: Source): boolean =>
    path.startsWith(folder) && endings.some((ending) => path.endsWith(ending));
  return sources.filter(isWanted);
}

/** 1-based line of a position in a text. */
export function lineOf(text: string, index: number): number {
  return text.slice(0, index).split("\n").length;
}
