// Owns the wheel: the shim, and inside it the program with its native core, for one platform.
import { copyFileSync, cpSync, mkdtempSync, renameSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { at } from "../.ci/lib/paths.js";
import { SHARE } from "./bundle.js";
import { call } from "./call.js";
import { addonName } from "./targets.js";

const SHIM = ["pyproject.toml", "README.md", "tierkv"];

/** Writes the wheel of `target` into `folder`, from the program at `program` and the addon at `addon`; `python` has setuptools. */
export function makeWheel({ target, program, addon, folder, python }) {
  const stage = mkdtempSync(join(tmpdir(), "tierkv-wheel-"));
  try {
    const filter = (path) => !path.includes("__pycache__");
    for (const name of SHIM) {
      cpSync(at("python-shim", name), join(stage, name), { recursive: true, filter });
    }
    copyFileSync(at("packaging", "setup.py"), join(stage, "setup.py"));
    copyFileSync(at("LICENSE"), join(stage, "LICENSE"));
    const inside = join(stage, "tierkv", "_program");
    cpSync(program, inside, { recursive: true });
    // Moved to where pip installs shared files, because man and shells of the environment look there.
    renameSync(join(inside, SHARE), join(stage, SHARE));
    copyFileSync(addon, join(inside, "core", addonName(target)));
    const args = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"];
    const env = { ...process.env, TIERKV_WHEEL_PLATFORM: target.wheel, SOURCE_DATE_EPOCH: EPOCH };
    call(python, [...args, "--wheel-dir", folder, stage], { env });
  } finally {
    rmSync(stage, { recursive: true, force: true });
  }
}

/** Timestamp of all archive entries, the earliest that a zip file can hold, so that builds are equal. */
const EPOCH = "315532800";
