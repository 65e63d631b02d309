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
    // Nothing is looked for on this machine, because a linker script named libc.so is an error to auditwheel.
    const show = ["show", "--json", "--ldpaths", folder, join(folder, name)];
    const { stdout, stderr } = spawnSync(join(tools, "auditwheel"), show, { encoding: "utf8" });
    const found = tagIn(stdout);
    const [asked, needed] = [versionOf(wheel), versionOf(found)];
    if (needed !== null && needed.libc === asked.libc && needed.version <= asked.version) continue;
    throw new Error(`${name} needs ${found === "" ? stderr.trim() : found}`);
  }
}

/** What auditwheel found; "" where it found nothing. musl's loader is its own libc.so, which auditwheel knows by another name. */
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
