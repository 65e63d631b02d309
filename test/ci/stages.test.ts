// Owns the proof that no test file is in no stage, and that `npm run quick` finds the tests of a room.
import { existsSync, readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { roomNames, roomOf, roomOfFile } from "../../.ci/lib/rooms.js";
import { EVERY_CHANGE, NIGHTLY, quickStages, STAGES } from "../../.ci/lib/stages.js";
import { cargoTargets, vitestFiles } from "../../.ci/lib/suites.js";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));

interface Stage {
  name: string;
  command?: string;
  args?: string[];
  checks?: { name: string }[];
}

const ALL = [...STAGES, ...NIGHTLY] as Stage[];

/** Files below a folder whose names match, relative to the repository. */
function filesOf(folder: string, pattern: RegExp): string[] {
  return readdirSync(`${ROOT}${folder}`, { recursive: true, encoding: "utf8" })
    .map((name) => `${folder}/${name}`)
    .filter((path) => pattern.test(path));
}

/** Stages whose arguments name the file or a folder above it and do not ignore it. */
function stagesWith(path: string): string[] {
  const covers = ({ command, args = [] }: Stage): boolean =>
    command !== "cargo" &&
    args.some((arg) => arg === path || path.startsWith(`${arg}/`)) &&
    !args.includes(`--ignore=${path}`);
  return ALL.filter(covers).map(({ name }) => name);
}

test("each test file of TypeScript and Python is in a stage", () => {
  const paths = [
    ...filesOf("test", /\.test\.ts$/),
    ...filesOf("test/engine", /\/test_\w+\.py$/),
    ...filesOf("python-shim/tests", /\/test_\w+\.py$/),
  ];
  expect(paths.length).toBeGreaterThan(400);
  expect(paths.filter((path) => stagesWith(path).length === 0)).toEqual([]);
});

test("each test target of Rust is in a stage, and unit tests are", () => {
  const named = new Set(
    ALL.filter(({ command }) => command === "cargo").flatMap(({ args }) => args ?? []),
  );
  expect(named).toContain("--lib");
  const crates = readdirSync(`${ROOT}crates`).filter(
    (crate) => crate !== "fuzz" && existsSync(`${ROOT}crates/${crate}/tests`),
  );
  const targets = crates.flatMap((crate) => {
    const paths = filesOf(`crates/${crate}/tests`, /\/tests\/(?:[^/]+|[^/]+\/main)\.rs$/);
    return paths.map((path) =>
      path
        .replace(/(?:\/main)?\.rs$/, "")
        .split("/")
        .at(-1)!,
    );
  });
  expect(targets).toContain("lanes_tls");
  expect(targets.filter((name) => !named.has(name))).toEqual([]);
});

test("a file with single tests that are nightly is in `slow`, beside its stage for every change", () => {
  const files = vitestFiles().filter(({ marker, hasMarked }) => marker === null && hasMarked);
  expect(files).not.toEqual([]);
  for (const { path } of files) {
    expect(stagesWith(path)).toEqual(expect.arrayContaining(["vitest", "slow"]));
  }
});

test("names of cargo's targets are unique, because a stage names them without their crate", () => {
  const names = cargoTargets().map(({ name }) => name);
  expect(names).toEqual([...new Set(names)]);
});

test("a file that is marked is in a nightly stage and not in one of every change", () => {
  const marked = vitestFiles().filter(({ marker }) => marker !== null);
  expect(new Set(marked.map(({ marker }) => marker))).toEqual(new Set(["nightly", "alone"]));
  const ofEveryChange = (STAGES as Stage[]).map(({ name }) => name);
  for (const { path } of marked) {
    const stages = stagesWith(path);
    expect(stages.filter((name) => ofEveryChange.includes(name))).toEqual([]);
    expect(stages).not.toEqual([]);
  }
});

test("all tests with vLLM are nightly on the newest and the oldest release, those of every change too", () => {
  const elsewhere = /\/test_(?:mlx|exo|sglang\w*)\.py$/;
  const paths = filesOf("test/engine", /\/test_\w+\.py$/).filter((path) => !elsewhere.test(path));
  expect(paths).toEqual(expect.arrayContaining([...EVERY_CHANGE]));
  for (const path of paths) {
    const stages = stagesWith(path).filter((name) => / \d of \d$/.test(name));
    expect(stages.map((name) => name.replace(/ \d of \d$/, "")).sort()).toEqual([
      "newest release",
      "oldest release",
    ]);
  }
});

test("names of stages and checks are unique, because `--only` takes either", () => {
  for (const stages of [STAGES, NIGHTLY] as Stage[][]) {
    const names = stages.flatMap(({ name, checks = [] }) => [name, ...checks.map((c) => c.name)]);
    expect(names).toEqual([...new Set(names)]);
  }
});

describe("quick", () => {
  test("a room is a folder of tests, the shim, or a crate; part of it by its name", () => {
    expect(roomOf("vault/access")!.vitest).toContain("test/vault/access/attempts.test.ts");
    expect(roomOf("vault")!.vitest).not.toContain("test/vault/server.kill.test.ts");
    expect(roomOf("base")!.vitest).toContain("test/base/time.test.ts");
    expect(roomOf("shim/saves")!.pytest).toEqual(["python-shim/tests/test_saves.py"]);
    expect(roomOf("crates/core/record")!.cargo).toEqual(["record"]);
    expect(roomOf("crates/core")!.isUnit).toBe(true);
    expect(roomOf("nowhere")).toBe(null);
    expect(roomOf("crates/nothing")).toBe(null);
    expect(roomNames()).toEqual(expect.arrayContaining(["base", "vault", "shim", "crates/shm"]));
  });

  test("a changed file belongs to the deepest room with tests", () => {
    expect(roomOfFile("src/sidecar/save/save.ts")).toBe("sidecar/save");
    expect(roomOfFile("src/base/time.ts")).toBe("base");
    expect(roomOfFile("python-shim/tierkv/asks.py")).toBe("shim");
    expect(roomOfFile("crates/core/src/store.rs")).toBe("crates/core");
    expect(roomOfFile("crates/Cargo.toml")).toBe(null);
    expect(roomOfFile("docs/errors.md")).toBe(null);
  });

  test("checks and tests are those of the room's languages", () => {
    const names = (room: string): string[] =>
      (quickStages([roomOf(room)!]) as Stage[]).flatMap(({ name, checks = [] }) => [
        name,
        ...checks.map((check) => check.name),
      ]);
    const always = ["check", "oxfmt", "oxlint", "tsc", "vitest"];
    expect(names("vault").toSorted()).toEqual(always.toSorted());
    expect(names("shim")).toEqual(expect.arrayContaining(["mypy", "ruff", "shim"]));
    expect(names("shim")).not.toContain("clippy");
    expect(names("crates/core/record")).toEqual(expect.arrayContaining(["clippy", "cargo"]));
    expect(names("crates/node")).toContain("clippy");
    expect(names("crates/node")).not.toContain("cargo");
  });
});
