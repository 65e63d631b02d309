// Owns the rules for Python: what it may import and call, where releases are told apart, how long a function is.
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { ROOT, under, type Rule, type Source } from "./sources.ts";
import { PYTHON_COMPAT, PYTHON_PACKAGES, SHIM_ROOMS } from "./table.ts";

interface Facts {
  path: string;
  doc: string;
  imports: { line: number; module: string; standard: boolean }[];
  calls: { line: number; name: string; args: number }[];
  names: { line: number; name: string }[];
  functions: { line: number; name: string; lines: number }[];
}

const FUNCTION_LINES_MAX = 70;
const OUTPUT_BYTES_MAX = 64_000_000;
const SHIPPED = "python-shim/tierkv/";

/** What Python's own parser says about the sources, in their order. */
function factsOf(sources: readonly Source[]): Facts[] {
  if (sources.length === 0) return [];
  const python = join(ROOT, ".venv", "bin", "python");
  const out = execFileSync(python, [join(ROOT, "test", "tidy", "python_facts.py")], {
    input: JSON.stringify(sources),
    encoding: "utf8",
    maxBuffer: OUTPUT_BYTES_MAX,
  });
  return JSON.parse(out) as Facts[];
}

/** A rule over the facts of every Python file below a folder. */
function pythonRule(
  name: string,
  folder: string,
  breaches: (facts: Facts) => string[],
  examples: Rule["examples"],
): Rule {
  return {
    name: `Python: ${name}`,
    breaches: (sources) => factsOf(under(sources, folder, ".py")).flatMap(breaches),
    examples,
  };
}

const opening = pythonRule(
  "every file opens with a sentence that says what it owns",
  "",
  ({ path, doc }) => (/^\S.{10,}/.test(doc) ? [] : [path]),
  [{ "python-shim/tierkv/a.py": "import os\n" }],
);

const functions = pythonRule(
  `no function of more than ${FUNCTION_LINES_MAX} lines`,
  "",
  (facts) =>
    facts.functions
      .filter(({ lines }) => lines > FUNCTION_LINES_MAX)
      .map(({ line, name, lines }) => `${facts.path}:${line} ${name} has ${lines} lines`),
  [{ "test/engine/a.py": `def long():\n${"    x = 1\n".repeat(FUNCTION_LINES_MAX)}` }],
);

const imports = pythonRule(
  "the shim imports the standard library and what the engine brings",
  SHIPPED,
  ({ path, imports: all }) => {
    const folder = Object.keys(PYTHON_PACKAGES).find((start) => path.startsWith(start)) ?? "";
    const allowed = ["tierkv", ...(PYTHON_PACKAGES[folder] ?? [])];
    const isForeign = ({ module, standard }: Facts["imports"][number]): boolean =>
      !standard && !allowed.includes(module.split(".")[0] ?? "");
    return all.filter(isForeign).map(({ line, module }) => `${path}:${line} imports ${module}`);
  },
  [
    { "python-shim/tierkv/connectors/vllm/a.py": "import requests\n" },
    { "python-shim/tierkv/connectors/vllm/a.py": "def f():\n    from numpy import x\n" },
  ],
);

const SHIM = "python-shim/tierkv/connectors/vllm/";

/** Where a module stands among the shim's rooms: below all of them for `limits`, null for a module of another folder. */
function shimFloor(module: string): number | null {
  const [, room = ""] = /^tierkv\.connectors\.vllm(?:\.(\w+))?/.exec(module) ?? [];
  if (!module.startsWith("tierkv.connectors.vllm")) return null;
  if (room === "plugin") return SHIM_ROOMS.length;
  // Passes calls on to the engine's half; vLLM's own offloading is built on it.
  return SHIM_ROOMS.indexOf(room === "connector" ? "engine" : room);
}

const shimRooms = pythonRule(
  "the rooms of the shim import one way",
  SHIM,
  ({ path, imports: all }) => {
    const room = path.slice(SHIM.length).split("/");
    if (room.length > 1 && !SHIM_ROOMS.includes(room[0] ?? "")) return [`${path}: in no room`];
    const from = shimFloor(path.slice("python-shim/".length, -".py".length).replaceAll("/", "."));
    return all
      .filter(({ module }) => (shimFloor(module) ?? -1) > (from ?? -1))
      .map(({ line, module }) => `${path}:${line}: ${module} stands above it`);
  },
  [
    { [`${SHIM}link/a.py`]: "from tierkv.connectors.vllm.save.saves import SavePlanner\n" },
    { [`${SHIM}limits.py`]: "from tierkv.connectors.vllm.api import compat\n" },
    { [`${SHIM}attic/a.py`]: "" },
  ],
);

const CODE_FROM_DATA = /^(?:builtins\.)?(?:eval|exec|compile|__import__)$|(?:^|\.)torch\.load$/;
const UNSAFE_MODULES = /^(?:pickle|_pickle|cPickle|marshal|shelve|dill|cloudpickle|joblib)(?:\.|$)/;

const unsafe = pythonRule(
  "no code made from data",
  SHIPPED,
  ({ path, imports: all, calls }) => [
    ...all.filter(({ module }) => UNSAFE_MODULES.test(module)).map((i) => `${path}:${i.line}`),
    ...calls.filter(({ name }) => CODE_FROM_DATA.test(name)).map((c) => `${path}:${c.line}`),
  ],
  [
    { "python-shim/tierkv/a.py": "import pickle\n" },
    { "python-shim/tierkv/a.py": 'eval("1")\n' },
    { "python-shim/tierkv/a.py": 'import torch\ntorch.load("x")\n' },
  ],
);

const GETATTR_WITH_DEFAULT = 3;
const PROBES =
  /^(?:hasattr|inspect\.signature|importlib\.util\.find_spec|importlib\.metadata\.version)$/;

const releases = pythonRule(
  "only compat.py tells releases of the engine apart",
  SHIPPED,
  ({ path, calls, names }) => {
    if (PYTHON_COMPAT.includes(path)) return [];
    const isProbe = ({ name, args }: Facts["calls"][number]): boolean =>
      PROBES.test(name) || (name === "getattr" && args === GETATTR_WITH_DEFAULT);
    const probed = calls.filter(isProbe);
    const versions = names.filter(({ name }) => /^(?!tierkv\.).*\.__version__$/.test(name));
    return [...probed, ...versions].map(({ line, name }) => `${path}:${line} ${name}`);
  },
  [
    { "python-shim/tierkv/connectors/vllm/a.py": 'ok = hasattr(request, "x")\n' },
    { "python-shim/tierkv/connectors/vllm/a.py": "import vllm\nold = vllm.__version__ < '1'\n" },
    { "python-shim/tierkv/connectors/vllm/a.py": 'x = getattr(config, "x", None)\n' },
  ],
);

export const PYTHON_RULES: readonly Rule[] = [
  opening,
  functions,
  imports,
  shimRooms,
  unsafe,
  releases,
];
