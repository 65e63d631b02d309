// Owns the npm packages: the program, and one package per platform with its native core, of which npm installs one.
import {
  copyFileSync,
  cpSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { at } from "../.ci/lib/paths.js";
import { MANUALS, SHARE } from "./bundle.js";
import { call } from "./call.js";
import { addonName } from "./targets.js";

/** Writes `tierkv-PLATFORM-VERSION.tgz`, with the addon alone, into `folder`. */
export function makePlatformPackage({ target, addon, folder, manifest }) {
  const file = addonName(target);
  const about = { name: `tierkv-${target.name}`, main: file, files: [file], ...target.npm };
  pack(folder, (stage) => {
    copyFileSync(addon, join(stage, file));
    return { ...shared(manifest), description: `tierKV's native core, ${target.name}`, ...about };
  });
}

/** Writes `tierkv-VERSION.tgz`: the program, which depends on the package of its platform. */
export function makeProgramPackage({ targets, program, folder, manifest }) {
  pack(folder, (stage) => {
    cpSync(program, stage, { recursive: true });
    const own = JSON.parse(readFileSync(join(program, "package.json"), "utf8"));
    const { version } = manifest;
    const platforms = targets.map(({ name }) => [`tierkv-${name}`, version]);
    const pages = readdirSync(join(stage, SHARE, MANUALS)).sort();
    const man = pages.map((name) => `./${SHARE}/${MANUALS}/${name}`);
    const optionalDependencies = Object.fromEntries(platforms);
    return { ...own, ...shared(manifest), man, optionalDependencies };
  });
}

const shared = ({ version, keywords, license, author, engines }) => ({
  version,
  keywords,
  license,
  author,
  engines,
});

function pack(folder, write) {
  const stage = mkdtempSync(join(tmpdir(), "tierkv-npm-"));
  try {
    mkdirSync(folder, { recursive: true });
    const about = write(stage);
    writeFileSync(join(stage, "package.json"), `${JSON.stringify(about, null, 2)}\n`);
    copyFileSync(at("LICENSE"), join(stage, "LICENSE"));
    const args = ["pack", "--silent", "--ignore-scripts", "--pack-destination", folder];
    call("npm", args, { cwd: stage, stdio: ["ignore", "ignore", "inherit"] });
  } finally {
    rmSync(stage, { recursive: true, force: true });
  }
}
