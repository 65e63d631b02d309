// Owns `npm run release`: all artefacts of this version in `release/`, with checksums, a bill of materials and provenance.
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  readFileSync,
  readdirSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { VENV_BIN, at } from "../.ci/lib/paths.js";
import { compile, compilerIn, packerIn } from "./addon.js";
import { manifest, writeProgram } from "./bundle.js";
import { checkWheels } from "./checks.js";
import { makePlatformPackage, makeProgramPackage } from "./npm.js";
import { TARGETS, addonName } from "./targets.js";
import { makeWheel } from "./wheel.js";

const USAGE = `Usage: npm run release [-- --only PLATFORM[,PLATFORM]] [--addon FILE] [--folder FOLDER]

  --only    of ${TARGETS.map(({ name }) => name).join(", ")}; all where it is left out
  --addon   a native core that is there already, for the one platform that --only names
  --folder  where to write (default: release)
`;
const WHEEL_BYTES_MAX = 15e6;
const SUMS = "SHA256SUMS";

const say = (text) => process.stdout.write(`${text}\n`);
const output = (command, args) => execFileSync(command, args, { encoding: "utf8" }).trim();

// A failed step has written its own output; a stack would hide the line that counts.
process.on("uncaughtException", ({ message }) => {
  process.stderr.write(`release: ${message}\n`);
  process.exit(1);
});

const { values } = parseArgs({
  options: {
    only: { type: "string" },
    addon: { type: "string" },
    folder: { type: "string", default: at("release") },
  },
});

function chosen() {
  const wanted = values.only?.split(",") ?? TARGETS.map(({ name }) => name);
  const targets = TARGETS.filter(({ name }) => wanted.includes(name));
  if (targets.length < wanted.length || (values.addon !== undefined && targets.length !== 1)) {
    process.stderr.write(USAGE);
    process.exit(2);
  }
  return targets;
}

const targets = chosen();
if (values.addon !== undefined && !existsSync(values.addon)) {
  process.stderr.write(`--addon ${values.addon}: there is no such file\n`);
  process.exit(2);
}
const folder = resolve(values.folder);
const program = join(folder, "program");
if (existsSync(folder) && readdirSync(folder).length > 0 && !existsSync(join(folder, SUMS))) {
  process.stderr.write(
    `${folder} cannot take the artefacts: it holds other files; empty it, or name another one with --folder\n`,
  );
  process.exit(2);
}
rmSync(folder, { recursive: true, force: true });
mkdirSync(folder, { recursive: true });
// Written first, so that the next run may empty the folder also after a failure.
writeFileSync(join(folder, SUMS), "");

say("program: bundling");
const bundled = await writeProgram(program);
say(`program: ${bundled.length} npm packages bundled`);
const tools = at(".venv-packaging");
const compiler = values.addon === undefined ? compilerIn(tools) : null;
const python = join(compiler ?? packerIn(tools, VENV_BIN), "python");
for (const target of targets) {
  const addon = values.addon ?? join(folder, addonName(target));
  if (compiler !== null) {
    say(`core: compiling for ${target.name}`);
    compile(target, addon, compiler);
  }
  say(`wheel: packing for ${target.name}, some seconds`);
  makeWheel({ target, program, addon, folder, python });
  say(`npm package: packing for ${target.name}, some seconds`);
  makePlatformPackage({ target, addon, folder, manifest: manifest() });
  if (compiler !== null) rmSync(addon);
}
if (compiler !== null) {
  say("wheels: checking");
  checkWheels({ folder, targets, tools: compiler });
}
say("npm package: packing the program");
makeProgramPackage({ targets, program, folder, manifest: manifest() });
rmSync(program, { recursive: true });

say("bill of materials: writing");
const bom = output("node", [at(".ci", "supply-chain.js"), "--sbom"]);
writeFileSync(join(folder, "sbom.cdx.json"), `${bom}\n`);
writeFileSync(join(folder, "provenance.json"), `${JSON.stringify(provenance(), null, 2)}\n`);
const artefacts = readdirSync(folder)
  .filter((name) => name !== SUMS)
  .sort();
const sums = artefacts.map((name) => `${digest(join(folder, name))}  ${name}\n`);
writeFileSync(join(folder, SUMS), sums.join(""));
for (const name of artefacts) {
  const { size } = statSync(join(folder, name));
  say(`${(size / 1e6).toFixed(1).padStart(6)} MB  ${name}`);
  if (name.endsWith(".whl") && size > WHEEL_BYTES_MAX) throw new Error(`${name} is above 15 MB`);
}

/** Returns the commit, tools and platforms of the artefacts. */
function provenance() {
  const git = (...args) => output("git", ["-C", at(), ...args]);
  return {
    version: manifest().version,
    commit: git("rev-parse", "HEAD"),
    isClean: git("status", "--porcelain") === "",
    tools: {
      node: process.version,
      rustc: output("rustc", ["--version"]),
      ...(compiler === null ? {} : { zigbuild: output(join(compiler, "cargo-zigbuild"), ["-V"]) }),
    },
    platforms: targets.map(({ name, rust, wheel }) => ({ name, rust, wheel })),
  };
}

function digest(path) {
  return createHash("sha256").update(readFileSync(path)).digest("hex");
}
