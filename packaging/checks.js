// Owns the checks of finished wheels: PyPI takes their texts, and they ask for no newer C library than their names say.
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { call } from "./call.js";

const TAG = /^(manylinux|musllinux)_(\d+)_(\d+)_\w+$/;

/** `tools`: a folder with twine and auditwheel. Throws at the first wheel that is not what it says. */
export function checkWheels({ folder, targets, tools }) {
  const wheels = readdirSync(folder).filter((name) => name.endsWith(".whl"));
  call(join(tools, "twine"), ["check", "--strict", ...wheels.map((name) => join(folder, name))]);
  for (const { wheel } of targets.filter((target) => TAG.test(target.wheel))) {
    const name = wheels.find((one) => one.endsWith(`-${wheel}.whl`));
    const { stdout, stderr } = spawnSync(join(tools, "auditwheel"), ["show", join(folder, name)], {
      encoding: "utf8",
    });
    const [, found = ""] = /platform tag:\s+"(\w+)"/.exec(stdout) ?? [];
    const [asked, needed] = [versionOf(wheel), versionOf(found)];
    if (needed !== null && needed.libc === asked.libc && needed.version <= asked.version) continue;
    throw new Error(`${name} needs ${found === "" ? stderr.trim() : found}`);
  }
}

function versionOf(tag) {
  const [, libc, major, minor] = TAG.exec(tag) ?? [];
  return libc === undefined ? null : { libc, version: Number(major) * 1000 + Number(minor) };
}
