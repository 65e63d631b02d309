// Owns set-up: turns a fresh clone into a runnable one, and does nothing when nothing changed.
import { execFileSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { join, relative } from "node:path";
import { CORE, LOGS, NODE_BIN, VENV, VENV_BIN, at, releaseVenv } from "./lib/paths.js";
import { prerequisites } from "./lib/prerequisites.js";
import { elapsed, run } from "./lib/process.js";
import { progress } from "./lib/progress.js";
import { OLDEST_RELEASE, olderReleases } from "./lib/releases.js";
import { digest, filesUnder, isStamped, stamp } from "./lib/stamp.js";

const STEP_TIMEOUT_MS = 60 * 60_000;
const PROBE_TIMEOUT_MS = 20_000;
const UV_VERSION = "0.13.8";
const STAMP = ".tierkv-stamp";

const NETWORK_TROUBLE =
  /\b(ENOTFOUND|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EAI_AGAIN|E40[137]|E429|E50\d|SELF_SIGNED_CERT\w*)\b|npm error network|could not resolve host|failed to (?:fetch|download)|dns error|error sending request|connection (?:refused|reset|timed out)|name resolution|max retries exceeded|network failure/i;

/** A set-up failure: one line with the cause and the fix. */
class SetupError extends Error {}

/** Runs one command of a step; on failure reports the reason in a line and the end of its log. */
async function command(step, line, name, args, options = {}) {
  const logPath = join(LOGS, `setup-${step}.log`);
  const result = await run(name, args, {
    cwd: at(),
    timeoutMs: STEP_TIMEOUT_MS,
    logPath,
    onLine: line.note,
    ...options,
  });
  if (result.code === 0 && !result.timedOut) return;
  const log = readFileSync(logPath, "utf8");
  const why = result.timedOut
    ? `did not end within ${elapsed(STEP_TIMEOUT_MS)}; run it again: it goes on from there`
    : NETWORK_TROUBLE.test(log)
      ? "could not reach the package registry; check the network or proxy, then run it again"
      : (options.fix ?? `failed with exit code ${result.code}`);
  line.done("failed");
  const shown = result.tail.map((text) => `    | ${text}`).join("\n");
  throw new SetupError(`${step}: ${why}\n${shown}\n    full log: ${logPath}`);
}

/** Returns whether a short probe succeeds, because a built thing must exist and load. */
function works(name, args) {
  try {
    execFileSync(name, args, { cwd: at(), stdio: "ignore", timeout: PROBE_TIMEOUT_MS });
    return true;
  } catch {
    return false;
  }
}

const manifest = () => JSON.parse(readFileSync(at("package.json"), "utf8"));

const nodeModules = {
  name: "node modules",
  stampPath: () => at("node_modules", STAMP),
  inputs: () => {
    const { dependencies, devDependencies, overrides } = manifest();
    const wanted = JSON.stringify({ dependencies, devDependencies, overrides });
    const { platform, arch, versions } = process;
    return digest([at("package-lock.json")], wanted, platform, arch, versions.modules);
  },
  intact: () => existsSync(join(NODE_BIN, "tsc")),
  async build(line) {
    // Install scripts are off, because no package needs its own; the log level must not be the caller's "silent".
    const flags = ["--include=dev", "--ignore-scripts", "--no-audit", "--no-fund"];
    await command("node-modules", line, "npm", ["ci", ...flags, "--loglevel=notice"], {
      fix: 'npm ci failed; if it says that the lock file does not match, run "npm install" and commit it',
    });
  },
};

const generated = (name) =>
  /^crates\/(?:.*\/)?target$|^crates\/node\/(?:index\.(?:js|d\.ts)|[^/]*\.node|\.tierkv-stamp)$/.test(
    name,
  );

const nativeCore = {
  name: "native core",
  stampPath: () => join(CORE, STAMP),
  inputs: () => {
    const { napi, scripts } = manifest();
    const tool = at("node_modules", "@napi-rs", "cli", "package.json");
    const how = [JSON.stringify(napi), scripts["build:native"], scripts["build:native:tests"]];
    return digest([...filesUnder(["crates"], generated), tool], ...how);
  },
  intact: () =>
    existsSync(join(CORE, "index.d.ts")) &&
    works(process.execPath, ["--input-type=module", "-e", 'await import("#core")']),
  async build(line) {
    await command("native-core", line, "npm", ["run", "build:native:tests", "--loglevel=notice"], {
      fix: "the Rust core did not compile",
    });
    if (!nativeCore.intact()) {
      line.done("failed");
      throw new SetupError(
        `native core: built, but it does not load; try "rm -rf crates/target crates/node/*.node" and run it again`,
      );
    }
  },
};

/** Removes built files whose source is gone, so that dist mirrors src. */
function pruneDist() {
  for (const entry of readdirSync(at("dist"), { recursive: true })) {
    const source = entry.replace(/(?:\.d\.ts|\.js)(?:\.map)?$/, ".ts");
    if (source !== entry && !existsSync(at("src", source))) rmSync(at("dist", entry));
  }
}

const typescript = {
  name: "typescript",
  stampPath: () => at("dist", STAMP),
  inputs: () =>
    digest([
      ...filesUnder(["src"]),
      at("tsconfig.json"),
      at("package-lock.json"),
      join(CORE, "index.d.ts"),
    ]),
  intact: () =>
    filesUnder(["src"])
      .filter((path) => path.endsWith(".ts"))
      .every((path) => existsSync(at("dist", relative(at("src"), path).replace(/ts$/, "js")))),
  async build(line) {
    await command("typescript", line, join(NODE_BIN, "tsc"), ["-p", "."], {
      fix: "the TypeScript sources do not compile",
    });
    pruneDist();
  },
};

const ENGINE_PROBE =
  "import importlib.util as u, tierkv; assert all(map(u.find_spec, ['vllm', 'pytest', 'hypothesis']))";

const engine = {
  name: "python engine",
  stampPath: () => join(VENV, STAMP),
  inputs: () => digest([at("python-shim", "engine-lock.txt"), at("python-shim", "pyproject.toml")]),
  intact: () => works(join(VENV_BIN, "python"), ["-c", ENGINE_PROBE]),
  async build(line, python) {
    const step = "python-engine";
    const venvPython = join(VENV_BIN, "python");
    if (!works(venvPython, ["-m", "pip", "--version"])) {
      await command(step, line, python.path, ["-m", "venv", "--clear", VENV]);
    }
    const uv = join(VENV_BIN, "uv");
    const uvWanted = `from importlib.metadata import version as v; assert v("uv") == "${UV_VERSION}"`;
    if (!works(venvPython, ["-c", uvWanted])) {
      const pip = ["-m", "pip", "install", "--disable-pip-version-check"];
      await command(step, line, venvPython, [...pip, `uv==${UV_VERSION}`]);
    }
    const env = { VIRTUAL_ENV: VENV, UV_NO_CONFIG: "1" };
    await command(step, line, uv, ["pip", "sync", "python-shim/engine-lock.txt"], { env });
    const editable = ["--no-deps", "--no-build-isolation", "--editable", "python-shim"];
    await command(step, line, uv, ["pip", "install", ...editable], { env });
    if (!engine.intact()) {
      line.done("failed");
      throw new SetupError(
        'python engine: installed, but it does not import; run "rm -rf .venv" and set up again',
      );
    }
  },
};

/** One more environment with only an engine, which shares large files with the others. */
const environment = ({ name, step, folder, lock, module }) => ({
  name,
  stampPath: () => join(folder, STAMP),
  inputs: () => digest([at(lock)]),
  intact: () =>
    works(join(folder, "bin", "python"), [
      "-c",
      `import importlib.util as u; assert u.find_spec('${module}')`,
    ]),
  async build(line, python) {
    await command(step, line, python.path, ["-m", "venv", "--clear", "--without-pip", folder]);
    const env = { VIRTUAL_ENV: folder, UV_NO_CONFIG: "1" };
    await command(step, line, join(VENV_BIN, "uv"), ["pip", "sync", lock], { env });
  },
});

const engineOf = (release) =>
  environment({
    name: `vLLM ${release}`,
    step: `vllm-${release}`,
    folder: releaseVenv(release),
    lock: `python-shim/releases/${release}.txt`,
    module: "vllm",
  });

/** Environment of test/engine/test_mlx.py, for the nightly run. */
const mlx = environment({
  name: "mlx-lm",
  step: "mlx",
  folder: releaseVenv("mlx"),
  lock: "python-shim/mlx-lock.txt",
  module: "mlx_lm",
});

/** Environment of test/engine/test_sglang*.py: SGLang with the shim, whose plug-in SGLang finds as a package. */
const sglang = (() => {
  const folder = releaseVenv("sglang");
  const lock = "python-shim/sglang-lock.txt";
  const base = environment({ name: "SGLang", step: "sglang", folder, lock, module: "sglang" });
  return {
    ...base,
    inputs: () => digest([at(lock), at("python-shim", "pyproject.toml")]),
    async build(line, python) {
      await base.build(line, python);
      const env = { VIRTUAL_ENV: folder, UV_NO_CONFIG: "1" };
      const editable = ["--no-deps", "--no-build-isolation", "--editable", "python-shim"];
      await command("sglang", line, join(VENV_BIN, "uv"), ["pip", "install", ...editable], { env });
      const check = [join(folder, "bin", "python"), ["-c", "import torch, sglang"]];
      await command("sglang", line, ...check, {
        fix: "SGLang does not import; python-shim/sglang.in says how its lock is made",
      });
    },
  };
})();

const isReady = (step) => isStamped(step.stampPath(), step.inputs()) && step.intact();

async function main() {
  const startedMs = Date.now();
  const isNightly = process.argv.includes("--every-release");
  // For its stage alone: the demo does not need it.
  const hasSglang = isNightly || process.argv.includes("--sglang");
  const releases = isNightly ? olderReleases() : [OLDEST_RELEASE];
  // vLLM's CPU build is optional, because it takes gigabytes and only the demo and tests use it.
  const engines = process.argv.includes("--without-engine")
    ? []
    : [
        engine,
        ...releases.map(engineOf),
        ...(hasSglang ? [sglang] : []),
        ...(isNightly ? [mlx] : []),
      ];
  // Packages compile the core for their platforms, and not as tests need it.
  const core = process.argv.includes("--without-core") ? [] : [nativeCore];
  const steps = [nodeModules, ...core, typescript];
  if ([...steps, ...engines].every(isReady)) {
    process.stdout.write(`set-up: nothing to do, ${elapsed(Date.now() - startedMs)}\n`);
    return;
  }
  const { missing, python, summary } = await prerequisites();
  if (missing.length > 0) {
    throw new SetupError(`missing on this machine\n${missing.map((m) => `  - ${m}`).join("\n")}`);
  }
  process.stdout.write(`tierKV set-up (${summary})\n`);
  // Engines are mostly downloads, the others mostly computing.
  const ended = await Promise.allSettled([prepare(steps), prepare(engines, python)]);
  const failed = ended.find(({ status }) => status === "rejected");
  if (failed) throw failed.reason;
  process.stdout.write(`set-up done, ${elapsed(Date.now() - startedMs)}\n`);
}

/** Builds those of the steps that are not current, in order. */
async function prepare(steps, python) {
  for (const step of steps) {
    if (isReady(step)) continue;
    // Digested before building, because an edit during the build must trigger another.
    const inputs = step.inputs();
    rmSync(step.stampPath(), { force: true });
    const line = progress(step.name);
    await step.build(line, python);
    stamp(step.stampPath(), inputs);
    line.done("ready");
  }
}

try {
  await main();
} catch (error) {
  if (!(error instanceof SetupError)) throw error;
  process.stderr.write(`set-up failed: ${error.message}\n`);
  process.exitCode = 1;
}
