// Owns the import table as data: which room may import which, and which packages each may use.

/** Files of src/base, lowest first: each may import only those before it. */
export const FOUNDATION: readonly string[] = [
  "archive-remedies",
  "limits/general",
  "limits/access",
  "limits/again",
  "limits/codec",
  "limits/cold",
  "limits/cost",
  "limits/gateway",
  "limits/pool",
  "limits/receipts",
  "limits/seen",
  "limits/sessions",
  "limits/shared",
  "limits/tools",
  "limits/truth",
  "limits/user",
  "hosts",
  "families",
  "interfaces",
  "roles",
  "printable",
  "text",
  "json",
  "errors",
  "cancellation",
  "listen",
  "time",
  "metrics",
  "store-counts",
  "block",
  "key-text",
  "tenant",
  "shipped",
  "log-budget",
  "log",
  "failpoint",
  "lifecycle",
  "version",
  "directory",
  "own-file",
  "private-file",
  "key-pair",
  "signing-key",
  "trace-context",
  "native",
  "socket-file",
];

export interface Room {
  /** Rooms it may import; the foundation and itself always. */
  rooms: readonly string[];
  /** Rooms whose types alone it may import. */
  types: readonly string[];
  /** npm packages it may use. */
  packages: readonly string[];
  /** Knows bytes, not peers: may not open a socket. */
  offline: boolean;
}

const room = (given: Partial<Room>): Room => ({
  rooms: [],
  types: [],
  packages: [],
  offline: false,
  ...given,
});

const GRPC = "@grpc/grpc-js";

/** Rooms of src, and rooms within them that have rights of their own: what only the start of a process needs. */
export const ROOMS: Readonly<Record<string, Room>> = {
  config: room({ packages: ["smol-toml"] }),
  codec: room({ packages: ["piscina"], offline: true }),
  arena: room({ offline: true }),
  wire: room({ packages: [GRPC, "@grpc/proto-loader"] }),
  client: room({ rooms: ["wire"], types: ["config"], packages: [GRPC] }),
  discovery: room({
    rooms: ["wire", "client"],
    types: ["config"],
    packages: [GRPC, "@grpc/proto-loader"],
  }),
  vault: room({ rooms: ["wire", "discovery"], types: ["config"], packages: [GRPC] }),
  cost: room({ offline: true }),
  pool: room({ offline: true }),
  receipt: room({ offline: true }),
  sidecar: room({
    rooms: ["arena", "codec", "client", "cost", "pool", "receipt"],
    types: ["config", "discovery"],
    packages: ["@msgpack/msgpack"],
  }),
  gateway: room({
    rooms: ["cost", "pool", "wire"],
    types: ["config"],
    packages: ["undici", "prom-client", "@msgpack/msgpack", "@huggingface/jinja", GRPC],
  }),
  exposition: room({ types: ["config", "sidecar", "wire"], packages: ["prom-client"] }),
  page: room({ types: ["sidecar", "gateway"], packages: ["uplot"] }),
  control: room({ rooms: ["sidecar"], types: ["config", "gateway"] }),
  cluster: room({
    rooms: ["config", "wire", "client", "discovery", "vault", "gateway", "control"],
    types: ["sidecar"],
    packages: ["bonjour-service"],
  }),
  moving: room({ rooms: ["client", "pool"], types: ["sidecar"] }),
  diagnosis: room({
    rooms: ["arena", "client", "control", "cluster"],
    types: ["config", "gateway", "sidecar", "wire"],
  }),
  "page/process": room({
    rooms: ["config", "page", "control", "diagnosis"],
    types: ["gateway", "sidecar"],
  }),
  "sidecar/process": room({
    rooms: [
      "config",
      "client",
      "cluster",
      "exposition",
      "page/process",
      "sidecar",
      "vault/process",
    ],
  }),
  "vault/process": room({
    rooms: ["client", "cluster", "config", "discovery", "exposition", "moving", "sidecar", "vault"],
  }),
  "gateway/process": room({
    rooms: ["client", "cluster", "config", "control", "exposition", "gateway"],
  }),
  extras: room({
    rooms: [
      "arena",
      "client",
      "cluster",
      "config",
      "control",
      "moving",
      "pool",
      "receipt",
      "sidecar",
    ],
  }),
  cli: room({
    rooms: [
      "arena",
      "client",
      "cluster",
      "codec",
      "config",
      "control",
      "diagnosis",
      "discovery",
      "extras",
      "gateway",
      "gateway/process",
      "moving",
      "page/process",
      "pool",
      "receipt",
      "sidecar",
      "sidecar/process",
      "vault",
      "vault/process",
      "wire",
    ],
    packages: ["commander"],
  }),
};

/** Rooms within the sidecar, lowest first: each may import only those before it; the files beside them import all. */
export const SIDECAR_ROOMS: readonly string[] = [
  "socket",
  "trace",
  "vaults",
  "slots",
  "restore",
  "save",
  "engine",
];

/** The same of the vault. */
export const VAULT_ROOMS: readonly string[] = ["state", "flushes", "access", "user", "calls"];

/** The same of the gateway. */
export const GATEWAY_ROOMS: readonly string[] = [
  "engines",
  "events",
  "index",
  "hashes",
  "members",
  "vaults",
  "tokens",
  "score",
  "counts",
  "front",
  "picker",
];

/** Modules of the Rust core, lowest first: each may use only those before it. */
export const CORE_MODULES: readonly string[] = [
  "crc32c",
  "error",
  "failpoint",
  "limits",
  "goodput",
  "sync",
  "table",
  "folder",
  "free_list",
  "lent",
  "past_cache",
  "header",
  "memory",
  "peer",
  "archive",
  "pool",
  "slots",
  "tenant",
  "arena",
  "codec_id",
  "key",
  "lockfile",
  "geometry",
  "record",
  "codec",
  "disk",
  "seal",
  "outbox",
  "digest",
  "store",
  "inbox",
  "recut",
  "lane",
  "listener",
];

/** Packages a foundation file may use. */
export const FOUNDATION_PACKAGES: Readonly<Record<string, readonly string[]>> = {
  log: ["pino", "pino-pretty"],
  native: ["#core"],
};

export const SOCKET_MODULES: readonly string[] = ["dgram", "http", "http2", "https", "net", "tls"];

/** What lies at the root of the repository; nothing else may. */
export const TOP_LEVEL: readonly string[] = [
  ".ci",
  ".editorconfig",
  ".gitattributes",
  ".github",
  ".gitignore",
  ".npmrc",
  ".oxfmtrc.json",
  ".oxlintrc.json",
  "CHANGELOG.md",
  "CONTRIBUTING.md",
  "LICENSE",
  "README.md",
  "HACKING.md",
  "SECURITY.md",
  "bench",
  "bin",
  "crates",
  "deploy",
  "docs",
  "findings",
  "package-lock.json",
  "package.json",
  "packaging",
  "page",
  "proto",
  "python-shim",
  "src",
  "test",
  "tierkv.toml.example",
  "tsconfig.json",
];

/** Folders of test/ that do not mirror a room. */
export const TEST_FOLDERS: readonly string[] = [
  "ci",
  "core",
  "engine",
  "faults",
  "packaging",
  "scenarios",
  "support",
  "tidy",
  "vectors",
];

/** Python: what the files below a folder may import besides the standard library and our own package. */
export const PYTHON_PACKAGES: Readonly<Record<string, readonly string[]>> = {
  "python-shim/tierkv/connectors/": ["blake3", "msgspec", "torch", "vllm"],
  "python-shim/tierkv/mlx/": ["msgspec", "mlx", "mlx_lm", "numpy"],
  "python-shim/tierkv/sglang/": ["msgspec", "sglang", "torch"],
  "python-shim/tierkv/": ["msgspec", "torch", "vllm"],
};

/** Rooms of the shim, lowest first: each may import only rooms before it; `connector.py` and `plugin.py` import all. */
export const SHIM_ROOMS: readonly string[] = [
  "api",
  "link",
  "pages",
  "naming",
  "requests",
  "restore",
  "save",
  "engine",
  "offloading",
];

/** The Python files that know releases apart: of vLLM the branches and the probe that names them, of mlx-lm, EXO and SGLang a name or a check. */
export const PYTHON_COMPAT: readonly string[] = [
  "python-shim/tierkv/connectors/vllm/api/compat.py",
  "python-shim/tierkv/connectors/vllm/api/contract.py",
  "python-shim/tierkv/connectors/vllm/offloading/compat.py",
  // Tells systems apart.
  "python-shim/tierkv/connectors/vllm/link/systems.py",
  "python-shim/tierkv/mlx/exo.py",
  "python-shim/tierkv/mlx/naming.py",
  "python-shim/tierkv/sglang/naming.py",
];
