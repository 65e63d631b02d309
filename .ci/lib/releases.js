// Owns which vLLM releases are set up and tested beside the newest: the oldest always, one of the others in turn, or all.
import { execFileSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { at } from "./paths.js";

/** The oldest release the shim accepts. */
export const OLDEST_RELEASE = "0.28.0";
/** What python-shim/engine-lock.txt holds. */
export const NEWEST_RELEASE = "0.32.0";

/** Those there is a lock file for: all but the newest. */
export const olderReleases = () =>
  readdirSync(at("python-shim", "releases"))
    .filter((name) => name.endsWith(".txt"))
    .map((name) => name.replace(/\.txt$/, ""))
    .toSorted();

/** The release whose turn it is. The commit chooses, so that a commit runs the same tests every time. */
function releaseInTurn() {
  const others = olderReleases().filter((release) => release !== OLDEST_RELEASE);
  const options = { cwd: at(), stdio: ["ignore", "pipe", "ignore"] };
  let turn = 0;
  try {
    const commit = String(execFileSync("git", ["rev-parse", "HEAD"], options));
    turn = Number.parseInt(commit.slice(0, 8), 16);
  } catch {
    // Not a checkout: the first one.
  }
  return others[turn % others.length];
}

/** What an ordinary run sets up and tests beside the newest. */
export const releasesOfRun = () => [OLDEST_RELEASE, releaseInTurn()];
