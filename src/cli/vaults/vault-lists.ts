// Owns edits of the vault lists in the configuration file, and the share of blocks that a changed list moves.
import {
  existsSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { RECORD_CLASSES } from "../../base/block.ts";
import type { RecordClass } from "../../base/block.ts";
import { makeDirectory } from "../../base/directory.ts";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { isNames } from "../../base/hosts.ts";
import { SHARE_SAMPLES } from "../../base/limits/pool.ts";
import { showShare } from "../../base/text.ts";
import { randomId } from "../../base/time.ts";
import { isReached } from "../../cluster/credentials.ts";
import { hasTwoPlaces, ONE_PLACE } from "../../cluster/targets.ts";
import { checkConfig } from "../../config/check.ts";
import type { Address, Config } from "../../config/config.ts";
import { setText } from "../../config/edit.ts";
import { asTyped, checkWord } from "../../config/override.ts";
import { homeOf } from "../../config/own-places.ts";
import { Placement } from "../../pool/placement.ts";
import type { Cut } from "../../pool/placement.ts";
import type { Call } from "../shell/call.ts";

export interface Written {
  path: string;
  isDone: boolean;
  /** Why the edited file would be refused; null: it would not be. */
  problem: TierkvError | null;
  /** Why the file could not be written, where that was tried. */
  trouble?: string;
}

export function writeVaults(
  { io }: Call,
  config: Config,
  lists: Partial<Record<RecordClass, readonly string[]>>,
): Written {
  const path = config.path ?? join(homeOf(io.env), ".config", "tierkv", "tierkv.toml");
  const before = existsSync(path) ? readFileSync(path, "utf8") : "";
  const after = Object.entries(lists).reduce<string | null>((text, [name, list]) => {
    const [first = ""] = list;
    const value = list.length === 1 ? first : list;
    return text === null ? null : setText(text, "cluster", `${name}_cold`, value);
  }, before);
  const [problem = null] = after === null ? [] : checkConfig(after, path, io.env).problems;
  if (after === null || problem !== null) return { path, isDone: false, problem };
  // A file that has the lists already may be root's.
  if (after === before) return { path, isDone: true, problem };
  try {
    replace(path, after);
    return { path, isDone: true, problem };
  } catch (error) {
    return { path, isDone: false, problem, trouble: toTierkvError(error).message };
  }
}

/** Returns one line: the settings that were written, or are to be written by hand. */
export function describeWritten(
  { path, isDone, problem, trouble }: Written,
  lists: Partial<Record<RecordClass, readonly string[]>>,
): string {
  const settings = Object.entries(lists).map(([name, list]) => settingOf(name, list));
  if (isDone) return `${path}: ${settings.join(", ")}`;
  const by = `write below its [cluster]: ${settings.join(", ")}`;
  const why = trouble === undefined ? "edited safely" : `written (${trouble})`;
  return problem === null
    ? `${path} could not be ${why}: ${by}`
    : `${path} was not changed, because it has a mistake: ${problem.message}; mend it, then ${by}`;
}

function settingOf(name: string, list: readonly string[]): string {
  const [first = ""] = list;
  const texts = list.map((text) => JSON.stringify(text)).join(", ");
  return `${name}_cold = ${list.length === 1 ? JSON.stringify(first) : `[${texts}]`}`;
}

/** Replaces the file atomically; a symbolic link and the mode stay. */
function replace(path: string, text: string): void {
  makeDirectory(dirname(path));
  const isThere = existsSync(path);
  const real = isThere ? realpathSync(path) : path;
  const mode = isThere ? statSync(real).mode & 0o777 : 0o644;
  const fresh = `${real}.${randomId(4)}`;
  try {
    writeFileSync(fresh, text, { mode });
    renameSync(fresh, real);
  } catch (error) {
    rmSync(fresh, { force: true });
    throw error;
  }
}

/** Returns the configured vaults of a class. */
export function listOf({ cluster }: Config, name: RecordClass): string[] {
  return (name === "kv" ? cluster.kvCold : cluster.ssmCold).map(({ text }) => text);
}

/** Runs `tierkv vaults add|remove` on the configuration file; `only`: that class, else KV for `add`, and each list that has it for `remove`. */
export function changeList(call: Call, only: RecordClass | undefined, isAdded: boolean): boolean {
  const [address = ""] = call.args;
  const config = call.loadConfig();
  const holding = RECORD_CLASSES.filter((name) => listOf(config, name).includes(address));
  const [first = "kv", ...others] = only === undefined && !isAdded ? holding : [only ?? "kv"];
  const classes = [first, ...others];
  const lists: Partial<Record<RecordClass, string[]>> = {};
  for (const name of classes) lists[name] = changedList(config, name, address, isAdded);
  const written = writeVaults(call, config, lists);
  const { path, isDone, problem } = written;
  // The file as it is has no mistake: it was read above.
  if (problem !== null) throw asTyped(problem);
  const [before, after = []] = [listOf(config, first), lists[first]];
  const moved = movedShare(before, after, cutOf(first));
  call.print({ classes, vaults: after, moved, path, isDone }, [
    describeWritten(written, lists),
    ...remarkOnJoining(config, isAdded ? address : null),
    ...movedFrom(before, moved, isAdded),
    ...remarkOn(config, lists),
    ...remarkOnStates(config, isAdded && only === undefined ? address : null),
    "write the same on all machines of the pool, and start running sidecars again",
  ]);
  return isDone;
}

function remarkOn(config: Config, lists: Partial<Record<RecordClass, string[]>>): string[] {
  return hasTwoPlaces(changedOf(config, lists)) ? [] : [ONE_PLACE];
}

function remarkOnJoining(config: Config, added: string | null): string[] {
  return added === null || isReached(config, added) ? [] : [NOT_JOINED];
}

/** Says that the list of recurrent states was left as it is. `address`: null where a class was named, or nothing added. */
function remarkOnStates(config: Config, address: string | null): string[] {
  const known = listOf(config, "ssm");
  if (address === null || known.length === 0 || known.includes(address)) return [];
  const also = `tierkv vaults add ${address} --class ssm`;
  return [`ssm_cold does not name it; a vault of both classes (role cold) needs \`${also}\`, too`];
}

/** Returns the list of a class with or without the address. Throws USAGE if that changes nothing, or leaves none. */
function changedList(
  config: Config,
  name: RecordClass,
  address: string,
  isAdded: boolean,
): string[] {
  const known = listOf(config, name);
  const key = `[cluster] ${name}_cold`;
  const wrong = (reason: string): TierkvError =>
    new TierkvError("USAGE", { reason: `${address.slice(0, 100)}: ${reason}` });
  if (isAdded) {
    checkWord("cluster", `${name}_cold`, "address", address);
    if (known.includes(address)) throw wrong(`${key} names it already`);
    return [...known, address];
  }
  const named = known.length === 0 ? "no vault is named there" : known.join(", ");
  if (!known.includes(address)) throw wrong(`it is not in ${key}: ${named}`);
  const list = known.filter((text) => text !== address);
  if (list.length > 0) return list;
  throw wrong(`it is the only one: take ${key} out of ${config.path ?? "the file"}`);
}

/** Returns a line about the blocks that change their vault where a list of vaults grows; none where the list names a pool. */
export function remarkOnMoved(
  config: Config,
  lists: Partial<Record<RecordClass, readonly string[]>>,
): string[] {
  const { kv: after = [] } = lists;
  const before = listOf(config, "kv");
  if (after.length <= before.length || after.some(isNames)) return [];
  return movedFrom(before, movedShare(before, after, cutOf("kv")), true);
}

const movedFrom = (before: readonly string[], moved: number, isAdded: boolean): string[] =>
  before.length === 0
    ? []
    : [isAdded ? describeMoved(moved) + AGAIN : UNLESS + describeMoved(moved)];

/** A drain has moved the records already. */
const UNLESS = "unless it was drained, ";

const AGAIN = "; engines compute those once more, and the new vault stores them";

const describeMoved = (moved: number): string =>
  `about ${showShare(moved)} of all blocks change their vault, if all vaults are of one size`;

/** The cluster with changed lists; of their addresses only the text counts here. */
function changedOf(
  { cluster }: Config,
  { kv, ssm }: Partial<Record<RecordClass, string[]>>,
): Config["cluster"] {
  const of = (texts: readonly string[]): Address[] =>
    texts.map((text) => ({ host: "", port: 0, text }));
  return {
    ...cluster,
    kvCold: kv === undefined ? cluster.kvCold : of(kv),
    ssmCold: ssm === undefined ? cluster.ssmCold : of(ssm),
  };
}

const NOT_JOINED =
  "nothing is sent to it before this machine joins it: run the line that `tierkv invite` prints on its machine";

function cutOf(name: RecordClass): Cut {
  return name === "ssm" ? "whole" : "parts";
}

/** Returns the share of blocks whose owner changes. */
function movedShare(before: readonly string[], after: readonly string[], cut: Cut): number {
  if (before.length === 0) return 0;
  const [old, now] = [before, after].map((all) => {
    const owners = new Placement(all, undefined, cut).samples();
    return Array.from(owners, (owner) => all[owner]);
  });
  const moved = old?.filter((owner, at) => owner !== now?.[at]).length ?? 0;
  return moved / SHARE_SAMPLES;
}
