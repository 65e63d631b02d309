// Owns the search for the Python that runs a stand's engine: one whose environment holds vLLM and tierKV's shim.
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { PYTHON_ANSWER_MS } from "../../base/limits/general.ts";
import { shipped } from "../../base/shipped.ts";
import { failed } from "./processes.ts";

/** Prints the packages that are missing, without importing them, because vLLM takes seconds. */
const MISSING = [
  "import importlib.util as u",
  "print(*[name for name in ('vllm', 'tierkv') if u.find_spec(name) is None])",
].join("\n");

/**
 * Returns the checkout's own Python, else the one of the wheel's command (`TIERKV_PYTHON`), else `python3` on PATH. Throws
 * DEMO_FAILED, naming what is missing, before anything is started.
 */
export function findPython(env: NodeJS.ProcessEnv): string {
  const own = shipped(".venv/bin/python");
  if (existsSync(own)) return own;
  if (existsSync(shipped("python-shim/engine.in")))
    throw failed(`there is no Python with vLLM at ${own}; run \`npm run setup\``);
  const python = env["TIERKV_PYTHON"] || "python3";
  const asked = spawnSync(python, ["-c", MISSING], {
    encoding: "utf8",
    timeout: PYTHON_ANSWER_MS,
    env,
  });
  if (asked.error !== undefined || asked.status !== 0)
    throw failed(
      `an engine needs a Python with vLLM and tierkv, and ${python} does not run: ${FIX}`,
    );
  const missing = asked.stdout.trim();
  if (missing === "") return python;
  throw failed(`an engine needs vLLM and tierkv, and ${python} lacks ${missing}: ${FIX}`);
}

const FIX =
  "install both in one environment and activate it, or set TIERKV_PYTHON to its interpreter";
