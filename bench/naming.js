// Owns the figures of naming a model's files: digest rate of whole files, and the cost of a restart with known files.
import { fileURLToPath } from "node:url";
import { figure, gigabytesPerSecond } from "./lib/figures.js";
import { Stand } from "./lib/stand.js";

const SCRIPT = fileURLToPath(new URL("./naming.py", import.meta.url));
const TIMEOUT_MS = 600_000;
const MIB = 2 ** 20;
const FILE_BYTES = 1024 * MIB;
const ROUNDS = 5;
/** Bound on the digest of the configuration, because a start waits for that only; files are read in the background. */
const START_MS_MOST = 100;
/** Goals: times the rate of SHA-256 by one thread, and seconds until a model of 16 GB has a name. */
const RATIO_LEAST = 4;
const SECONDS_16_GB_MOST = 5;
const OFFLINE = { VLLM_LOGGING_LEVEL: "ERROR", HF_HUB_OFFLINE: "1" };

export const title = "Naming a model's files (four, from the page cache)";

const seconds16 = (bytes, rounds) => rounds.map((seconds) => (seconds * 16e9) / bytes);

export async function run({ isQuick }) {
  const stand = new Stand();
  try {
    const flags = ["--file-bytes", String(isQuick ? 32 * MIB : FILE_BYTES)];
    const args = [SCRIPT, ...flags, "--rounds", String(isQuick ? 2 : ROUNDS)];
    const { bytes, threads, first, again, bare, start } = await stand.python(args, {
      timeoutMs: TIMEOUT_MS,
      env: OFFLINE,
    });
    return {
      figures: [
        figure("read whole for the first time", "GB/s", gigabytesPerSecond(bytes, first), {
          beside: gigabytesPerSecond(bytes, bare),
          of: "SHA-256 by one thread",
          floor: { on: "ratio", least: RATIO_LEAST },
        }),
        figure("that rate for a model of 16 GB, on this machine", "s", seconds16(bytes, first), {
          floor: { on: "value", most: SECONDS_16_GB_MOST },
        }),
        figure(
          "known files, at a restart",
          "ms",
          again.map((seconds) => seconds * 1e3),
          { floor: { on: "value", most: START_MS_MOST } },
        ),
        figure("what a start waits for: its configuration is digested", "ms", [start * 1e3], {
          floor: { on: "value", most: START_MS_MOST },
        }),
      ],
      notes: [`${(bytes / 1e9).toFixed(1)} GB, ${threads} thread(s) of lowest priority`],
    };
  } finally {
    await stand.close();
  }
}
