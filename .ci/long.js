// Owns the long run: its parts in turn until the time is up, each recorded in test/faults/long-runs.json when it ends.
import { execFileSync } from "node:child_process";
import { randomInt } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { LOGS, NODE_BIN, at, VENV_BIN } from "./lib/paths.js";
import { run } from "./lib/process.js";
import { PYTEST } from "./lib/stages.js";

const MINUTES = 120;
const MINUTES_MAX = 24 * 60;
const RECORD = at("test", "faults", "long-runs.json");
const READS_TEST = "test/faults/reads.test.ts";
/** Reads of one vault; a pool gets half as many. */
const READS = 2_000_000;
const SOAK_S = 900;
const PACKETS_S = 600;
/** Flips at each of three doors. */
const FLIPS = 340_000;
const FLIP_DOORS = 3;
const CONNECTIONS = 10_000;
const ENGINE_KILLS = 25;
/** With 100 deaths, test_deaths.py asks its prompts 10,000 times. */
const VAULT_DEATHS = 100;
const FUZZ_S = 120;
/** Bytes of a vault's memory in GB; `--churn-gb 16 --churn-minutes 60` has filled 16 GB for an hour. */
const CHURN_GB = 4;
const CHURN_MINUTES = 10;
/** Real memory beyond the counted bytes, in percent. */
const FRAGMENTATION_MOST = 10;
const PART_TIMEOUT_MS = 120 * 60_000;

const say = (text) => process.stdout.write(`${text}\n`);

/** Runs a part's tests; returns the printed lines, and whether all passed. */
async function tests(name, command, args, env) {
  const lines = [];
  const ran = await run(command, args, {
    cwd: at(),
    env,
    timeoutMs: PART_TIMEOUT_MS,
    logPath: join(LOGS, `long-${name}.log`),
    onLine: (line) => lines.push(line),
  });
  return { lines, hasPassed: ran.code === 0 && !ran.timedOut };
}

const VITEST = ["run", "--config", "test/vitest.config.ts"];
const vitest = (name, files, env) =>
  tests(name, join(NODE_BIN, "vitest"), [...VITEST, ...files], env);
const pytest = (name, file, env) =>
  tests(name, join(VENV_BIN, "python"), [...PYTEST, "-s", file], env);

/** Returns the JSON after `word` in a test's output. */
function told(lines, word) {
  const line = lines.find((text) => text.includes(`${word} {`));
  return line === undefined ? {} : JSON.parse(line.slice(line.indexOf("{")));
}

const failures = (hasPassed) => (hasPassed ? 0 : 1);

/** Parts by name; each returns its counts, always with `failures`. */
const PARTS = {
  async reads(seed) {
    const env = { TIERKV_TEST_SEED: String(seed), TIERKV_TEST_READS: String(reads) };
    const { lines, hasPassed } = await vitest("reads", [READS_TEST, "-t", "F9"], env);
    const { seed: _seed, ...counts } = told(lines, "faulted reads");
    return { ...counts, failures: failures(hasPassed) };
  },
  async poolReads(seed) {
    const env = { TIERKV_TEST_SEED: String(seed), TIERKV_TEST_READS: String(reads / 2) };
    const { lines, hasPassed } = await vitest("pool-reads", [READS_TEST, "-t", "F102"], env);
    const { seed: _seed, ...counts } = told(lines, "faulted pool reads");
    return { ...counts, failures: failures(hasPassed) };
  },
  async packets(seed) {
    const env = { TIERKV_TEST_SEED: String(seed), TIERKV_TEST_PACKETS_S: String(packetsS) };
    const { lines, hasPassed } = await vitest("packets", ["test/faults/packets.test.ts"], env);
    const { seed: _seed, ...counts } = told(lines, "packets");
    return { seconds: packetsS, ...counts, failures: failures(hasPassed) };
  },
  async flips(seed) {
    const ran = await run("cargo", ["test", "-p", "tierkv-core", "--test", "flips"], {
      cwd: at("crates"),
      env: { TIERKV_TEST_SEED: String(seed), TIERKV_TEST_FLIPS: String(FLIPS) },
      timeoutMs: PART_TIMEOUT_MS,
      logPath: join(LOGS, "long-flips.log"),
    });
    const hasPassed = ran.code === 0;
    return { flips: hasPassed ? FLIPS * FLIP_DOORS : 0, failures: failures(hasPassed) };
  },
  async kills(seed) {
    const files = ["test/vault/server.kill.test.ts", "test/sidecar/sidecar.kill.test.ts"];
    const { hasPassed } = await vitest("kills", files, { TIERKV_TEST_SEED: String(seed) });
    return { kills: hasPassed ? 40 : 0, failures: failures(hasPassed) };
  },
  async engines(seed) {
    const env = { TIERKV_TEST_SEED: String(seed), TIERKV_TEST_ENGINE_KILLS: String(ENGINE_KILLS) };
    const { lines, hasPassed } = await pytest("engines", "test/engine/test_kills.py", env);
    return { ...told(lines, "engine kills"), failures: failures(hasPassed) };
  },
  async deaths(seed) {
    const env = { TIERKV_TEST_SEED: String(seed), TIERKV_TEST_DEATHS: String(deaths) };
    const { lines, hasPassed } = await pytest("deaths", "test/engine/test_deaths.py", env);
    const counts = { ...told(lines, "vault deaths"), ...told(lines, "vault deaths timed") };
    return { ...counts, failures: failures(hasPassed) };
  },
  async crowds(seed) {
    const env = { TIERKV_TEST_SEED: String(seed), TIERKV_TEST_CONNECTIONS: String(CONNECTIONS) };
    const files = ["test/vault/server.overload.test.ts", "test/sidecar/sidecar.overload.test.ts"];
    const { lines, hasPassed } = await vitest("crowds", ["-t", "crowd", ...files], env);
    const vault = Object.entries(told(lines, "crowd at a vault"));
    const sidecar = Object.entries(told(lines, "crowd at a sidecar"));
    const named = (who, all) => all.map(([name, count]) => [`${who} ${name}`, count]);
    const counts = Object.fromEntries([...named("vault", vault), ...named("sidecar", sidecar)]);
    return { ...counts, failures: failures(hasPassed) };
  },
  async soak(seed) {
    const env = { TIERKV_TEST_SEED: String(seed), TIERKV_TEST_SOAK_S: String(soakS) };
    const { lines, hasPassed } = await vitest("soak", ["test/faults/soak.test.ts"], env);
    // Peaks are dropped, because sums of them mean nothing.
    const { seed: _seed, peaksMib: _peaks, ...counts } = told(lines, "soak");
    return { ...counts, failures: failures(hasPassed) };
  },
  async "game-day"() {
    const { lines, hasPassed } = await vitest("game-day", ["test/faults/game-day.test.ts", "-u"]);
    return { ...told(lines, "game day"), failures: failures(hasPassed) };
  },
  async upgrade() {
    const env = values.from === undefined ? {} : { TIERKV_TEST_UPGRADE_FROM: values.from };
    const { lines, hasPassed } = await pytest("upgrade", "test/engine/test_upgrade.py", env);
    const { requests, failed, records, kept } = told(lines, "upgrade");
    say(lines.find((line) => line.startsWith("upgrade {")) ?? "");
    return { requests, failed, records, kept, failures: failures(hasPassed) };
  },
  async churn(seed) {
    const flags = ["--gb", churnGb, "--minutes", churnMinutes, "--seed", seed].map(String);
    const lines = [];
    const example = ["run", "--release", "--quiet", "-p", "tierkv-core", "--example", "churn"];
    const ran = await run("cargo", [...example, "--", ...flags], {
      cwd: at("crates"),
      timeoutMs: PART_TIMEOUT_MS,
      logPath: join(LOGS, "long-churn.log"),
      onLine: (line) => lines.push(line),
    });
    const { read = 0, wrong = 0, storedGB = 0, fragmentationMost } = told(lines, "churn");
    const hasPassed = ran.code === 0 && wrong === 0 && fragmentationMost <= FRAGMENTATION_MOST;
    say(lines.at(-1) ?? "");
    return { gigabytes: Math.round(storedGB), read, wrong, failures: failures(hasPassed) };
  },
  async fuzz() {
    const lines = [];
    const ran = await run(process.execPath, [".ci/fuzz.js", "--seconds", String(FUZZ_S)], {
      cwd: at(),
      timeoutMs: PART_TIMEOUT_MS,
      logPath: join(LOGS, "long-fuzz.log"),
      onLine: (line) => lines.push(line),
    });
    const inputs = lines.map((line) => Number(/ok, (\d+) inputs/.exec(line)?.[1] ?? 0));
    return { inputs: inputs.reduce((sum, n) => sum + n, 0), failures: failures(ran.code === 0) };
  },
};

const options = {
  minutes: { type: "string", default: String(MINUTES) },
  only: { type: "string" },
  reads: { type: "string", default: String(READS) },
  "packets-s": { type: "string", default: String(PACKETS_S) },
  deaths: { type: "string", default: String(VAULT_DEATHS) },
  "soak-s": { type: "string", default: String(SOAK_S) },
  "churn-gb": { type: "string", default: String(CHURN_GB) },
  /** Commit whose package is upgraded to this one's. */
  from: { type: "string" },
  "churn-minutes": { type: "string", default: String(CHURN_MINUTES) },
};
const { values } = parseArgs({ options });
const minutes = Number(values.minutes);
const [reads, soakS] = [Number(values.reads), Number(values["soak-s"])];
const [churnGb, churnMinutes] = [Number(values["churn-gb"]), Number(values["churn-minutes"])];
const [packetsS, deaths] = [Number(values["packets-s"]), Number(values.deaths)];
const names = values.only?.split(",") ?? Object.keys(PARTS);
if (!(minutes > 0 && minutes <= MINUTES_MAX) || names.some((name) => !(name in PARTS))) {
  say(`usage: npm run test:long -- [--minutes N] [--only ${Object.keys(PARTS).join(",")}]`);
  process.exit(2);
}

const commit = execFileSync("git", ["rev-parse", "--short", "HEAD"], { encoding: "utf8" }).trim();
const endMs = Date.now() + minutes * 60_000;
let failed = 0;
for (let turn = 0; Date.now() < endMs; turn += 1) {
  const part = names[turn % names.length];
  const seed = randomInt(2 ** 31);
  const begunMs = Date.now();
  const counts = await PARTS[part](seed);
  const seconds = Math.round((Date.now() - begunMs) / 1000);
  failed += counts.failures;
  const date = new Date().toISOString().slice(0, 10);
  const record = JSON.parse(readFileSync(RECORD, "utf8"));
  record.push({ date, commit, part, seconds, seeds: part === "fuzz" ? [] : [seed], counts });
  writeFileSync(RECORD, `${JSON.stringify(record, null, 2)}\n`);
  say(`${part}: ${seconds} s, seed ${seed}, ${JSON.stringify(counts)}`);
}
say(`${failed === 0 ? "nothing" : failed} failed; renew docs/reliability.md`);
process.exitCode = failed === 0 ? 0 : 1;
