// Owns the program as packages carry it: bundled JavaScript without node_modules, the native core's loader, all licences.
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { writeJsBinding } from "@napi-rs/cli";
import { rolldown } from "rolldown";
import { at } from "../.ci/lib/paths.js";
import { licences } from "./licences.js";

const require = createRequire(import.meta.url);

/** Files for shells and man, laid out as below a prefix. */
export const SHARE = "share";
const COMPLETIONS = {
  bash: "bash-completion/completions/tierkv",
  zsh: "zsh/site-functions/_tierkv",
  fish: "fish/vendor_completions.d/tierkv.fish",
};
export const MANUALS = "man/man1";

/** File that Piscina starts from beside its own, by name. */
const POOL_WORKER = "worker";

/** Library that the program loads by itself, for a terminal alone, and the file that has it whole. */
const PRETTY = "pino-pretty";
const PRETTY_FILE = "dist/cli/pretty.cjs";

/** Library that the browser gets unchanged. */
const CHARTS = "uplot";

/** Names that CommonJS modules in the bundle use. */
const COMMONJS_NAMES = [
  'import { dirname as dirnameOfBundle } from "node:path";',
  'import { fileURLToPath as pathOfBundle } from "node:url";',
  "const __filename = pathOfBundle(import.meta.url);",
  "const __dirname = dirnameOfBundle(__filename);",
].join("\n");

/** Python files that make and find the models of `tierkv demo`. */
export const LAB = [
  "__init__",
  "checkpoint",
  "families",
  "geometries",
  "hub_model",
  "published",
  "tokenizer",
];

/** Files copied from the repository, under the names that the program expects. */
const COPIED = [
  "bin/tierkv.js",
  "proto/tierkv.proto",
  "proto/health.proto",
  "proto/ext_proc.proto",
  "proto/etcd.proto",
  "tierkv.toml.example",
  "src/extras/stand/data/inference.txt",
  "src/extras/stand/data/vault.txt",
  ...["alice", "notes", "phases", "station", "try"].map(
    (name) => `src/extras/demo/data/${name}.txt`,
  ),
  ...LAB.map((name) => `python-shim/lab/${name}.py`),
  "python-shim/lab/published.json",
  // What `tierkv demo` and `tierkv fidelity` ask their user to install.
  "python-shim/engine-lock.txt",
];

/**
 * Writes the program into `folder`: `bin/`, `dist/`, `proto/`, `core/` and `package.json`, without the native addon.
 * Needs a built `dist/`, and no compiled core. Resolves to the names of the bundled npm packages.
 */
export async function writeProgram(folder) {
  rmSync(folder, { recursive: true, force: true });
  for (const path of COPIED) copy(path, join(folder, path));
  await writeLoader(join(folder, "core"));
  writePage(join(folder, "page"));
  writeShare(join(folder, SHARE));
  const inputs = {
    "cli/main": at("dist/cli/main.js"),
    "codec/worker": at("dist/codec/worker.js"),
    [`cli/${POOL_WORKER}`]: require.resolve("piscina").replace(/[^/]+$/, `${POOL_WORKER}.js`),
  };
  const bundled = [
    ...(await bundle(inputs, join(folder, "dist"))),
    ...(await bundlePretty(join(folder, PRETTY_FILE))),
  ];
  const { name, version, description, license, engines } = manifest();
  const program = { name, version, description, license, type: "module", engines };
  const imports = { "#core": "./core/index.js" };
  const bin = { tierkv: "bin/tierkv.js" };
  write(join(folder, "package.json"), `${JSON.stringify({ ...program, bin, imports }, null, 2)}\n`);
  write(join(folder, "THIRD-PARTY.txt"), licences([...new Set([...bundled, CHARTS])].sort()));
  copy("LICENSE", join(folder, "LICENSE"));
  return [...new Set(bundled)];
}

/** Writes the loader of the native core, as napi does after it has compiled the core; its names are those of index.d.ts. */
export async function writeLoader(folder) {
  const types = readFileSync(at("crates/node/index.d.ts"), "utf8");
  const names = types.matchAll(/^export declare (?:function|class) (\w+)/gm);
  const { name, version, napi } = manifest();
  await writeJsBinding({
    platform: true,
    format: "esm",
    idents: Array.from(names, ([, ident]) => ident),
    binaryName: napi.binaryName,
    packageName: name,
    version,
    outputDir: folder,
  });
}

/** Generates manual pages and completions from this program's own commands. */
function writeShare(folder) {
  const tierkv = (...args) =>
    execFileSync(process.execPath, [at("bin/tierkv.js"), ...args], { encoding: "utf8" });
  tierkv("man", "--folder", join(folder, MANUALS));
  for (const [shell, path] of Object.entries(COMPLETIONS)) {
    write(join(folder, path), tierkv("completion", shell));
  }
}

/** Copies the page's files, and the chart library's beside them. */
function writePage(folder) {
  cpSync(at("page"), folder, { recursive: true });
  for (const name of ["uPlot.esm.js", "uPlot.min.css"]) {
    const path = require.resolve(`${CHARTS}/dist/${name}`);
    mkdirSync(join(folder, CHARTS), { recursive: true });
    cpSync(path, join(folder, CHARTS, name));
  }
}

/** Bundles with the same depth as `dist` of a checkout, because the program finds its files by relative paths. */
async function bundle(input, dir) {
  const build = await rolldown({
    input,
    platform: "node",
    // The core is loaded by name; Piscina works without the other one, which is native, too.
    external: ["#core", "@napi-rs/nice"],
    logLevel: "warn",
    transform: {
      define: {
        TIERKV_VERSION: JSON.stringify(manifest().version),
        TIERKV_PRETTY: JSON.stringify(PRETTY_FILE),
      },
    },
  });
  const { output } = await build.write({
    dir,
    format: "esm",
    entryFileNames: "[name].js",
    chunkFileNames: "cli/[name]-[hash].js",
    banner: COMMONJS_NAMES,
    minify: "dce-only",
  });
  await build.close();
  return packagesOf(output);
}

/** Bundles the library as CommonJS, because the log is opened without waiting. */
async function bundlePretty(file) {
  const input = require.resolve(PRETTY);
  const build = await rolldown({ input, platform: "node", logLevel: "warn" });
  const { output } = await build.write({ file, format: "cjs", minify: "dce-only" });
  await build.close();
  return packagesOf(output);
}

/** Returns the names of the npm packages whose modules are in the output. */
function packagesOf(output) {
  const modules = output.flatMap(({ moduleIds }) => moduleIds ?? []);
  const found = modules.map((id) => /.*node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(id)?.[1]);
  return [...new Set(found.filter((name) => name !== undefined))].sort();
}

export const manifest = () => JSON.parse(readFileSync(at("package.json"), "utf8"));

function copy(from, to) {
  mkdirSync(join(to, ".."), { recursive: true });
  cpSync(at(from), to);
}

function write(path, text) {
  mkdirSync(join(path, ".."), { recursive: true });
  writeFileSync(path, text);
}
