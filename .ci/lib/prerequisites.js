// Owns the list of programs that set-up needs, and how to install missing ones.
import { execFile } from "node:child_process";
import { accessSync, constants } from "node:fs";
import { delimiter, join } from "node:path";

const NODE_MIN = [20, 19];
const PYTHON_MIN = [3, 11];
const PYTHON_MAX = [3, 14]; // the engine has no builds for later ones yet
const CARGO_MIN = [1, 89];
const PROBE_TIMEOUT_MS = 10_000;
const PYTHONS = ["python3", "python3.14", "python3.13", "python3.12", "python3.11", "python"];

const PYTHON_PROBE =
  "import sys, venv, ensurepip; print(sys.executable, '.'.join(map(str, sys.version_info[:3])))";

/** Returns a command's output, or null when it is absent or fails. */
function ask(command, args) {
  return new Promise((resolve) => {
    execFile(command, args, { timeout: PROBE_TIMEOUT_MS }, (error, stdout) =>
      resolve(error ? null : stdout.trim()),
    );
  });
}

function version(text) {
  const match = /(\d+)\.(\d+)(?:\.\d+)?/.exec(text ?? "");
  return match ? { text: match[0], pair: [Number(match[1]), Number(match[2])] } : null;
}

const atLeast = (pair, min) => pair[0] > min[0] || (pair[0] === min[0] && pair[1] >= min[1]);

function onPath(name) {
  return (process.env.PATH ?? "").split(delimiter).some((folder) => {
    try {
      accessSync(join(folder, name), constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
}

async function findPython() {
  const named = process.env.PYTHON;
  const candidates = named ? [named] : PYTHONS;
  const answers = await Promise.all(candidates.map((name) => ask(name, ["-c", PYTHON_PROBE])));
  for (const answer of answers) {
    const [path, number] = answer?.split(" ") ?? [];
    const found = version(number);
    if (found && atLeast(found.pair, PYTHON_MIN) && atLeast(PYTHON_MAX, found.pair)) {
      return { path, version: found.text };
    }
  }
  return null;
}

function pythonFix() {
  const range = `${PYTHON_MIN.join(".")} to ${PYTHON_MAX.join(".")}`;
  const named = process.env.PYTHON ? ` (PYTHON=${process.env.PYTHON} is not one)` : "";
  return `Python ${range} with its venv module${named}: install python3 and python3-venv from your system's packages, or set PYTHON=/path/to/python3`;
}

/**
 * Checks everything at once, so that one run names all missing programs.
 * @returns {Promise<{missing: string[], python: {path: string, version: string} | null, summary: string}>}
 */
export async function prerequisites() {
  const [python, cargoAnswer] = await Promise.all([findPython(), ask("cargo", ["--version"])]);
  const cargo = version(cargoAnswer);
  const node = version(process.version);
  const missing = [];
  if (!atLeast(node.pair, NODE_MIN)) {
    missing.push(
      `Node >= ${NODE_MIN.join(".")} (this is ${node.text}): install it from nodejs.org or with nvm`,
    );
  }
  if (!python) missing.push(pythonFix());
  if (!cargo || !atLeast(cargo.pair, CARGO_MIN)) {
    const found = cargo ? ` (this is ${cargo.text})` : "";
    missing.push(
      `Rust >= ${CARGO_MIN.join(".")}${found}: install it from rustup.rs, or run "rustup update stable"`,
    );
  }
  if (!["cc", "gcc", "clang"].some(onPath)) {
    missing.push(
      'a C linker for Rust: "apt install build-essential", or "xcode-select --install" on a Mac',
    );
  }
  const summary = `node ${node.text}, python ${python?.version}, cargo ${cargo?.text}`;
  return { missing, python, summary };
}
