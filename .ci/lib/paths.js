// Owns the paths of a checkout, for scripts that run before anything is installed.
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = fileURLToPath(new URL("../..", import.meta.url)).replace(/\/$/, "");
export const at = (...parts) => join(ROOT, ...parts);

export const LOGS = at(".ci", "logs");
export const VENV = at(".venv");
/** Returns the environment of a vLLM release beside the one in VENV, or of `mlx` or `sglang`. */
export const releaseVenv = (release) => at(`.venv-${release}`);
export const VENV_BIN = at(".venv", "bin");
export const NODE_BIN = at("node_modules", ".bin");
export const CORE = at("crates", "node");
