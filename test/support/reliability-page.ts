// Owns the text of docs/reliability.md and docs/faults.md, from the fault table, the goals and the record of long runs.
import { readFileSync } from "node:fs";
import type { FaultRow } from "../faults/row.ts";
import { FAULTS, isLoaded } from "../faults/table.ts";
import { FAILPOINT_TABLES, readFailpoints } from "./failpoints.ts";

interface Goal {
  id: string;
  goal: string;
  target: string;
  /** Text in which words beginning with @ stand for sums over the record of long runs. */
  measured: string;
  state: "met" | "part" | "missed" | "not done";
  how: string;
  date: string;
}

/** A fixed bug: its commit, and the file and title of its test; null: no test. */
interface Replay {
  commit: string;
  bug: string;
  test: readonly [file: string, title: string] | null;
}

/** One run of one part of `npm run test:long`. */
export interface LongRun {
  date: string;
  commit: string;
  part: string;
  seconds: number;
  seeds: number[];
  /** Counts of the run; always with `wrong` and `failures`. */
  counts: Record<string, number>;
}

const read = (name: string): unknown =>
  JSON.parse(readFileSync(new URL(`../faults/${name}`, import.meta.url), "utf8"));

const GOALS = read("goals.json") as Goal[];
const RUNS = read("long-runs.json") as LongRun[];
const REPLAYS = read("replays.json") as Replay[];

const number = (value: number): string => Math.round(value).toLocaleString("en-US");

function total(part: string, name: string): number {
  return RUNS.filter((run) => run.part === part).reduce(
    (sum, { counts }) => sum + (counts[name] ?? 0),
    0,
  );
}

/** Returns the values of the words that begin with @. */
function sums(): Record<string, string> {
  const driven = FAULTS.filter(({ tests }) => tests.length > 0).length;
  const reads = `${number(total("reads", "read"))} in long runs and 200,000 in every run of the tests, ${number(total("reads", "wrong"))} wrong; of pools ${number(total("poolReads", "read"))} and 20,000, ${number(total("poolReads", "wrong"))} wrong`;
  const packets =
    total("packets", "seconds") === 0
      ? "a few seconds in every run of the tests; a long run: not done"
      : `${number(total("packets", "seconds"))} s in long runs: ${number(total("packets", "plans"))} restores, ${number(total("packets", "placed"))} blocks that came through, ${number(total("packets", "wrong"))} wrong, ${number(total("packets", "failures"))} failures; a few seconds in every run of the tests`;
  const soak =
    total("soak", "ops") === 0
      ? "not done"
      : `${number(total("soak", "ops"))} operations, ${number(total("soak", "wrong"))} wrong`;
  return {
    reads,
    packets,
    soak,
    replays: `${REPLAYS.filter(({ test }) => test !== null).length} of ${REPLAYS.length}`,
    rows: `${driven} of ${FAULTS.length}, ${FAULTS.filter(isLoaded).length} of them under load; of the others the table says why not`,
    kills: number(total("kills", "kills")),
    engineKills: number(total("engines", "engineKills")),
    deaths: number(total("deaths", "deaths")),
    deathRequests: number(total("deaths", "requests")),
    deathPrompts: number(total("deaths", "prompts")),
    deathsTimed: number(total("deaths", "timed")),
    deathsLate: number(total("deaths", "overLimit")),
    flips: number(total("flips", "flips")),
    fuzz:
      total("fuzz", "inputs") === 0
        ? "long runs: not done"
        : `${number(total("fuzz", "inputs"))} inputs in long runs`,
  };
}

function fill(text: string): string {
  const known = sums();
  return text.replace(/@(\w+)/g, (word, name: string) => known[name] ?? word);
}

const cell = (text: string): string => text.replaceAll("|", "\\|");
const table = (head: string, rows: readonly (readonly string[])[]): string =>
  [
    head,
    head.replaceAll(/[^|]+/g, "---"),
    ...rows.map((row) => `| ${row.map(cell).join(" | ")} |`),
  ].join("\n");

const goalRow = ({ id, goal, target, state, date }: Goal): string[] => [
  id,
  goal,
  target,
  state === "not done" ? "**not done**" : state,
  date,
];

const measuredRow = ({ id, measured, how }: Goal): string[] => [id, fill(measured), how];

const faultRow = (row: FaultRow): string[] => [
  row.id,
  row.fault,
  row.behaviour,
  [
    ...row.tests.map((path) => `\`${path}\``),
    ...(row.open === undefined ? [] : [`**${row.open}**`]),
  ].join(", "),
  isLoaded(row) ? "yes" : (row.unloaded ?? ""),
];

const replayRow = ({ commit, bug, test }: Replay): string[] => [
  commit,
  bug,
  test === null ? "**none**" : `\`${test[0]}\`: ${test[1]}`,
];

/** Returns name and place of each failpoint, as each language declares them. */
function failpoints(): string[][] {
  return Object.values(FAILPOINT_TABLES)
    .flatMap((each) =>
      readFailpoints(each, readFileSync(new URL(`../../${each.path}`, import.meta.url), "utf8")),
    )
    .map(([name, where]) => [`\`${name}\``, where]);
}

/** Returns one row for each part: its runs, their time, and their total counts. */
function longRuns(): string[][] {
  return [...new Set(RUNS.map(({ part }) => part))].map((part) => {
    const runs = RUNS.filter((run) => run.part === part);
    const seconds = runs.reduce((sum, run) => sum + run.seconds, 0);
    const sum = (name: string): string => `${number(total(part, name))} ${name}`;
    const counted = ["wrong", "failures"].filter((name) =>
      runs.some(({ counts }) => name in counts),
    );
    return [part, `${runs.length}`, `${number(seconds / 60)} min`, counted.map(sum).join(", ")];
  });
}

const MADE =
  "<!-- Made from test/faults/ by test/faults/page.test.ts, which also says how to renew it. -->";
const page = (...parts: string[]): string => `${parts.join("\n\n")}\n`;

/** Returns the whole docs/reliability.md. */
export function renderReliabilityPage(): string {
  return page(
    "# Reliability",
    MADE,
    `[faults.md](faults.md) lists each fault, the behaviour that must follow, and the test that proves it. It also has the measurements for each goal.

Where faults.md says that a fault is caused under load, the test demands four things: restores before and after the fault, or the run is void; every byte
as a ledger has it that the tested parts do not touch; proof that the fault happened; and no leftovers. A failing test prints its seed; \`TIERKV_TEST_SEED=N\` repeats it.`,
    "## Goals",
    `*met*: a measurement shows that the target holds. *part*: a measurement covers only a part of the target, and that part holds. *missed*: a measurement shows that it does not hold.
[What was measured](faults.md#what-was-measured) has the figures.`,
    table("| | goal | target | state | date |", GOALS.map(goalRow)),
    "## Long runs",
    `\`npm run test:long\` runs for up to two hours (\`-- --minutes 10 --only reads,kills\` for less), with new seeds each time. \`test/faults/long-runs.json\`
has each finished run with its commit, seeds and counts. Their sums by part, where \`wrong\` counts wrong bytes:`,
    table("| part | runs | time | counted |", longRuns()),
  );
}

/** Returns the whole docs/faults.md. */
export function renderFaultsPage(): string {
  return page(
    "# Faults",
    MADE,
    `Each row is a fault that the tests cause, and what must happen then. The last column says whether they cause it under load ([how](reliability.md)), or why not.${
      FAULTS.some(({ open }) => open !== undefined)
        ? " Bold text names what no test causes yet."
        : ""
    }`,
    table("| | fault | what must happen | tests | under load |", FAULTS.map(faultRow)),
    "## What was measured",
    "The measurement for each goal of [reliability.md](reliability.md).",
    table("| | measured | with |", GOALS.map(measuredRow)),
    "## Bugs that are fixed",
    "Fixed bugs that could have served wrong bytes, stopped an engine or let a stranger in, each with its test.",
    table("| fixed by | bug | test |", REPLAYS.map(replayRow)),
    "## Failpoints",
    `A failpoint makes a step fail, wait or crash at a named place, for faults that a test cannot cause from outside
([decision 0102](decisions/0102-how-faults-are-made.md)). Load and ledger are those of the other faults. A sidecar that uses vaults of other machines does not start with a failpoint. Set failpoints in the environment of a process, several with \`;\` between them:
\`TIERKV_FAILPOINTS="NAME=3*off->2*return->1*sleep(300)->1*abort"\`. \`off\` does nothing, \`return\` fails the step, \`sleep\` waits so many ms, and
\`abort\` ends the process as \`kill -9\` does. \`3*\` means for three passes; an action without a count holds from then on. The core has failpoints only in builds for its own tests.`,
    table("| failpoint | state in which it acts |", failpoints()),
  );
}
