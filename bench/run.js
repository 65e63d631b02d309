// Owns `npm run bench`: the choice of benches, and the output. A missed floor is marked and fails nothing.
import { parseArgs } from "node:util";
import { missingFromSetup } from "./lib/paths.js";

const USAGE = `Usage: npm run bench -- [--only NAME[,NAME]] [--quick] [--json] [--save]
       npm run bench:stale [-- --lines N]

  --only    run only these benches; of one that has parts, all of them or NAME:PART; at-once runs for 40 minutes,
            with 8 GB of memory, and only where it is named
  --geometry NAME
            real-sizes: one published KV geometry at a short prompt, by its name in python-shim/lab/geometries.py,
            llama-3.1-8b-16k: 16k tokens, and a short prompt beside them, or llama-3.1-8b-32k, with 17 GB of memory;
            both also with -1gib: an arena of 1 GiB
            windows: 16k, 32k, 64k (22 GB of memory), 100k (31 GB): tokens through an arena of 1 GiB; 16k-fits: of 4 GiB;
            slow-link: 16k tokens over 5 Gb/s, with 64 short prompts behind them
  --quick   smaller sets and fewer rounds: for trying, not for quoting, except of one-prefix
  --json    results as one JSON object on stdout, progress on stderr
  --save    write the results into bench/results: a file per bench, and the page of them all
  --stale   list figures of docs and bench/results whose bench, or what it measures (bench/lib/measured.js), changed by
            more than --lines lines (200) since the commit they name; measures nothing
`;

/** In the order of running, from kernels to whole engines. */
const NAMES = [
  "codec",
  "hit-ratio",
  "pool-hit-ratio",
  "sim",
  "disk",
  "lanes",
  "own-vault",
  "waits",
  "stores",
  "stores:links",
  "shm",
  "handoff",
  "tls",
  "rails",
  "auto",
  "sidecar",
  "lookup",
  "pool:links",
  "pool:losses",
  "pool:lookup",
  "pool-alone",
  "pool:drain",
  "slow-peer",
  "breaker",
  "gateway:wall",
  "gateway:virtual",
  "memory",
  "token-timing",
  "tenant-timing",
  "engine-steps:shared",
  "engine-steps:reserved",
  "forecast",
  "predictions",
  "naming",
  "first-hit",
  "real-sizes",
  "windows",
  "conversations",
  "at-once",
  "swap",
  "worth",
  "crowd:many",
  "crowd:beside",
  "one-prefix",
  "sglang:pools",
  "sglang:server",
  "never-slower:open",
  "never-slower:gigabit",
  "never-slower:100",
  "never-slower:10",
  "demo",
];

/** Run only by name, because each takes most of an hour. */
const BY_NAME = ["at-once"];

const isOf = (asked, name) => name === asked || name.startsWith(`${asked}:`);

const EXIT_CRASHED = 1;
const EXIT_USAGE = 2;

class UsageError extends Error {}

const SAVES_ALL = "--save wants all figures, as they may be quoted: leave the rest out";

function readOptions() {
  const boolean = { type: "boolean", default: false };
  const options = { quick: boolean, json: boolean, save: boolean, stale: boolean, help: boolean };
  let values;
  try {
    const text = { type: "string" };
    ({ values } = parseArgs({ options: { ...options, only: text, geometry: text, lines: text } }));
  } catch (error) {
    throw new UsageError(error.message);
  }
  const only = values.only?.split(",") ?? [];
  const isAsked = (name) =>
    only.length === 0 ? !BY_NAME.includes(name) : only.some((one) => isOf(one, name));
  const names = NAMES.filter(isAsked);
  const unknown = only.filter((one) => !NAMES.some((name) => isOf(one, name)));
  if (unknown.length > 0) {
    throw new UsageError(`--only ${unknown.join(",")}: there are ${NAMES.join(", ")}`);
  }
  if (values.save && values.geometry !== undefined) throw new UsageError(SAVES_ALL);
  return { ...values, names };
}

/** Refuses to keep figures of small sets: a bench says itself if its quick run has all of them. */
async function refuseParts({ quick, save, names }) {
  if (!quick || !save) return;
  for (const name of names) {
    const bench = await import(`./${name.split(":")[0]}.js`);
    if (bench.isWholeWhenQuick !== true) throw new UsageError(SAVES_ALL);
  }
}

const note = (text) => process.stderr.write(`${text}\n`);

/** Runs one bench; never throws, because a crash is part of the result. */
async function runOne(name, { quick: isQuick, geometry }) {
  const [file, part] = name.split(":");
  const bench = await import(`./${file}.js`);
  const startedMs = performance.now();
  const say = (text) => note(`  ${text}`);
  note(`== ${name}`);
  let result;
  try {
    if (geometry !== undefined && bench.geometries?.includes(geometry) !== true) {
      throw new Error(
        `--geometry ${geometry}: there are ${bench.geometries?.join(", ") ?? "none"}`,
      );
    }
    result = await bench.run({ isQuick, geometry, say, part });
  } catch (error) {
    note(error.stack);
    result = { figures: [], error: error.message };
  }
  const seconds = Math.round((performance.now() - startedMs) / 1000);
  return { bench: name, title: bench.titleOf?.(part) ?? bench.title, seconds, ...result };
}

/** Returns what keeps benches from running, or null. */
async function troubleOf({ quick }) {
  const missing = missingFromSetup();
  if (missing !== null) return `${missing} is missing; run \`npm run setup\` first`;
  // Imported late, because it reads the build of set-up.
  const { coreInfo } = await import("../dist/base/native.js");
  return coreInfo().assertions && !quick
    ? "the core is built for tests; build it for release with `npm run build:native`"
    : null;
}

/** Lists old figures; `lines`: changed lines above which a figure is old, as text. */
async function listOld(lines) {
  if (lines !== undefined && !/^\d{1,6}$/.test(String(lines))) {
    throw new UsageError(`--lines ${String(lines)}: a number of lines`);
  }
  const { listStale, STALE_LINES } = await import("./lib/stale.js");
  listStale((line) => process.stdout.write(`${line}\n`), Number(lines ?? STALE_LINES));
}

async function main() {
  const options = readOptions();
  if (options.help) {
    process.stdout.write(USAGE);
    return;
  }
  if (options.stale) {
    await listOld(options.lines);
    return;
  }
  const trouble = await troubleOf(options);
  if (trouble !== null) {
    note(`bench: ${trouble}`);
    process.exitCode = EXIT_CRASHED;
    return;
  }
  await refuseParts(options);
  // Imported late, because these files read the build of set-up.
  const { describeMachine, machineLine } = await import("./lib/machine.js");
  const { textLines } = await import("./lib/report.js");
  const machine = describeMachine();
  note(machineLine(machine));
  const results = [];
  for (const name of options.names) {
    const result = await runOne(name, options);
    results.push(result);
    if (!options.json) process.stdout.write(`\n${textLines(result).join("\n")}\n\n`);
  }
  const flags = process.argv.slice(2);
  const command = ["npm run bench", ...(flags.length > 0 ? ["--"] : []), ...flags].join(" ");
  const report = { command, isQuick: options.quick, machine, results };
  if (options.json) process.stdout.write(`${JSON.stringify(report)}\n`);
  const crashed = results.filter(({ error }) => error !== undefined).map(({ bench }) => bench);
  if (crashed.length > 0) {
    note(`bench: crashed: ${crashed.join(", ")}${options.save ? "; nothing was saved" : ""}`);
    process.exitCode = EXIT_CRASHED;
  } else if (options.save) {
    const { save } = await import("./lib/save.js");
    for (const path of save(report, NAMES)) note(`written: ${path}`);
  }
}

// Ends the processes of a bench together with this one.
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.once(signal, () => process.exit(130));

try {
  await main();
} catch (error) {
  if (!(error instanceof UsageError)) throw error;
  note(`bench: ${error.message}\n${USAGE}`);
  process.exitCode = EXIT_USAGE;
}
