// Owns the description of machine and time, because figures mean nothing without it.
import { execFileSync } from "node:child_process";
import { availableParallelism, cpus, loadavg, release, totalmem } from "node:os";
import { coreInfo } from "../../dist/base/native.js";
import { at } from "./paths.js";

/** Returns a command's output; empty when the command is absent. */
function ask(command, args) {
  try {
    const stdio = ["ignore", "pipe", "ignore"];
    return execFileSync(command, args, { cwd: at(), encoding: "utf8", stdio }).trim();
  } catch {
    return "";
  }
}

export function describeMachine() {
  const isChanged = ask("git", ["status", "--porcelain", "--untracked-files=no"]) !== "";
  const commit = ask("git", ["rev-parse", "--short", "HEAD"]);
  return {
    cpu: cpus()[0]?.model.trim() ?? "unknown",
    cores: availableParallelism(),
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    kernel: release(),
    node: process.versions.node,
    rustc: ask("rustc", ["--version"]).split(" ")[1] ?? "none",
    crc32c: coreInfo().crc32c,
    loadBefore: Number(loadavg()[0].toFixed(2)),
    date: new Date().toISOString().slice(0, 10),
    commit: isChanged ? `${commit} with changes` : commit,
  };
}

export function machineLine(machine) {
  const { cpu, cores, memoryGiB, kernel, node, rustc, loadBefore, date, commit } = machine;
  return (
    `${cpu}, ${cores} cores, ${memoryGiB} GiB, kernel ${kernel}, node ${node}, rustc ${rustc}, ` +
    `load before ${loadBefore}, ${date}, commit ${commit}`
  );
}
