// Owns the lists of vaults in the configuration file: writing them where that is sure, and how many blocks another list makes move.
import {
  existsSync,
  readFileSync,
  realpathSync,
  renameSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import type { RecordClass } from "../block.ts";
import { checkConfig } from "../config/check.ts";
import type { Config } from "../config/config.ts";
import { setText } from "../config/edit.ts";
import { makeDirectory } from "../directory.ts";
import { TierkvError } from "../errors.ts";
import { SHARE_SAMPLES } from "../limits/pool.ts";
import { createLogger } from "../log.ts";
import { Placement } from "../pool/placement.ts";
import type { Cut } from "../pool/placement.ts";
import { randomId } from "../time.ts";
import type { Call } from "./call.ts";
import { showShare } from "./text.ts";

export interface Written {
  path: string;
  isDone: boolean;
}

export function writeVaults(
  { io }: Call,
  config: Config,
  lists: Partial<Record<RecordClass, readonly string[]>>,
): Written {
  const home = io.env["HOME"] ?? homedir();
  const path = config.path ?? join(home, ".config", "tierkv", "tierkv.toml");
  const before = existsSync(path) ? readFileSync(path, "utf8") : "";
  const after = Object.entries(lists).reduce<string | null>((text, [name, list]) => {
    const [first = ""] = list;
    const value = list.length === 1 ? first : list;
    return text === null ? null : setText(text, "cluster", `${name}_cold`, value);
  }, before);
  if (after === null || checkConfig(after, path, io.env).config === null) {
    return { path, isDone: false };
  }
  try {
    replace(path, after);
    return { path, isDone: true };
  } catch (error) {
    createLogger("vaults", { level: config.log.level }).debug({ err: error }, "not written");
    return { path, isDone: false };
  }
}

/** In one step; a link goes on pointing where it did, and the mode stays. */
function replace(path: string, text: string): void {
  makeDirectory(dirname(path));
  const isThere = existsSync(path);
  const real = isThere ? realpathSync(path) : path;
  const mode = isThere ? statSync(real).mode & 0o777 : 0o644;
  const fresh = `${real}.${randomId(4)}`;
  writeFileSync(fresh, text, { mode });
  renameSync(fresh, real);
}

/** `tierkv vaults add|remove`. */
export function changeList(call: Call, name: RecordClass, isAdded: boolean): number {
  const [address = ""] = call.args;
  const config = call.loadConfig();
  const key = `${name}_cold`;
  const known = (name === "kv" ? config.cluster.kvCold : config.cluster.ssmCold).map(
    ({ text }) => text,
  );
  const wrong = (reason: string): TierkvError =>
    new TierkvError("USAGE", { reason: `${address.slice(0, 100)}: ${reason}` });
  if (known.includes(address) === isAdded) {
    const list = known.length === 0 ? "empty" : known.join(", ");
    throw wrong(`[cluster] ${key} ${isAdded ? "has it already" : "does not have it"} (${list})`);
  }
  const list = isAdded ? [...known, address] : known.filter((text) => text !== address);
  if (list.length === 0) {
    throw wrong(`it is the only one: take [cluster] ${key} out of ${config.path ?? "the file"}`);
  }
  const written = writeVaults(call, config, { [name]: list });
  const moved = movedShare(known, list, cutOf(config, name));
  const setting = `${key} = [${list.map((text) => JSON.stringify(text)).join(", ")}]`;
  call.print({ class: name, vaults: list, moved, ...written }, [
    written.isDone
      ? `${written.path}: ${setting}`
      : `${written.path} could not be edited surely: write below [cluster] in it: ${setting}`,
    `about ${showShare(moved)} of all blocks change their owner, where vaults are of one size`,
    "write the same on all machines; a sidecar that runs takes it up when it is started again",
  ]);
  return written.isDone ? 0 : 1;
}

function cutOf({ cluster }: Config, name: RecordClass): Cut {
  if (name === "ssm") return "whole";
  return cluster.redundancy === "parity" ? "parity" : "parts";
}

/** Of blocks. */
function movedShare(before: readonly string[], after: readonly string[], cut: Cut): number {
  if (before.length === 0) return 0;
  const [old, now] = [before, after].map((all) => {
    const owners = new Placement(all, undefined, cut).samples();
    return Array.from(owners, (owner) => all[owner]);
  });
  const moved = old?.filter((owner, at) => owner !== now?.[at]).length ?? 0;
  return moved / SHARE_SAMPLES;
}
