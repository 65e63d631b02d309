// Owns the checks of finished wheels: texts that PyPI accepts, and no newer C library than the name says.
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { call } from "./call.js";

const TAG = /^(manylinux|musllinux)_(\d+)_(\d+)_\w+$/;

/** `tools`: a folder with twine and auditwheel. Throws at the first wheel that fails a check. */
export function checkWheels({ folder, targets, tools }) {
  const wheels = readdirSync(folder).filter((name) => name.endsWith(".whl"));
  call(join(tools, "twine"), ["check", "--strict", ...wheels.map((name) => join(folder, name))]);
  for (const { wheel } of targets.filter((target) => TAG.test(target.wheel))) {
    const name = wheels.find((one) => one.endsWith(`-${wheel}.whl`));
    // The library path is narrowed, because auditwheel fails on a linker script named libc.so of this machine.
    const show = ["show", "--json", "--ldpaths", folder, join(folder, name)];
    const { stdout, stderr } = spawnSync(join(tools, "auditwheel"), show, { encoding: "utf8" });
    const found = tagIn(stdout);
    const [asked, needed] = [versionOf(wheel), versionOf(found)];
    if (needed !== null && needed.libc === asked.libc && needed.version <= asked.version) continue;
    throw new Error(`${name} needs ${found === "" ? stderr.trim() : found}`);
  }
}

/** Returns auditwheel's tag, "" for none. musl's loader is its own libc.so, which auditwheel counts as external. */
function tagIn(stdout) {
  if (stdout === "") return "";
  const { overall_tag: overall, sym_tag: symbols, external_libs: libraries } = JSON.parse(stdout);
  const isMuslAlone = Object.keys(libraries).every((name) => name === "libc.so");
  return symbols.startsWith("musllinux") && isMuslAlone ? symbols : overall;
}

function versionOf(tag) {
  const [, libc, major, minor] = TAG.exec(tag) ?? [];
  return libc === undefined ? null : { libc, version: Number(major) * 1000 + Number(minor) };
}
