// Owns the choice of vLLM releases that are set up and tested beside the newest: the oldest, or all.
import { readdirSync } from "node:fs";
import { at } from "./paths.js";

/** The oldest release the shim accepts. */
export const OLDEST_RELEASE = "0.28.0";
/** The release in python-shim/engine-lock.txt. */
export const NEWEST_RELEASE = "0.32.0";

/** Returns the releases with a lock file: all but the newest. */
export const olderReleases = () =>
  readdirSync(at("python-shim", "releases"))
    .filter((name) => name.endsWith(".txt"))
    .map((name) => name.replace(/\.txt$/, ""))
    .toSorted();
