// Owns what each bench measures: the files whose change makes its figures old. A folder stands for all files below it.

const CLIENT = ["src/client", "src/base", "crates/core/src/lane", "crates/node/src/lane_client.rs"];
const STORE = ["crates/core/src/store", "crates/core/src/store.rs", "crates/core/src/table.rs"];
const CODEC = ["crates/core/src/codec", "crates/core/src/geometry.rs", "crates/core/src/record.rs"];
const DISK = ["crates/core/src/disk", "crates/core/src/disk.rs"];
const SIDECAR = ["src/sidecar", "src/arena", ...CLIENT];
const SHIM = ["python-shim/tierkv/connectors/vllm"];
const WHOLE = [...SIDECAR, ...SHIM, ...STORE, "src/vault", "src/cost"];
const GATEWAY = ["src/gateway", "crates/index/src", "crates/tokens/src"];
const POOL = ["src/pool", "src/sidecar/vaults", "src/discovery"];

/** By bench, without its part. The bench's own file counts, too. */
export const MEASURED = {
  codec: CODEC,
  "hit-ratio": STORE,
  "pool-hit-ratio": [...POOL, ...STORE],
  sim: ["bench/sim", ...GATEWAY],
  disk: DISK,
  disk_tier: DISK,
  lanes: ["crates/core/src/lane", ...CODEC, ...STORE],
  waits: ["crates/core/src/lane", ...DISK, "src/sidecar/restore"],
  stores: ["crates/cold/src", "src/client/cold", ...CLIENT],
  shm: ["crates/shm/src", "src/client/region/shared-vault.ts", ...CODEC],
  handoff: WHOLE,
  tls: ["crates/core/src/lane", "crates/core/src/seal.rs"],
  rails: ["crates/core/src/lane/client", "src/client"],
  auto: ["src/sidecar/save", ...CODEC],
  sidecar: [...SIDECAR, ...STORE],
  lookup: [...SIDECAR, ...STORE],
  pool: [...POOL, ...SIDECAR],
  "pool-alone": [...POOL, ...SIDECAR],
  "slow-peer": SIDECAR,
  breaker: CLIENT,
  gateway: GATEWAY,
  memory: WHOLE,
  "token-timing": ["src/vault", ...STORE],
  "tenant-timing": ["src/vault", ...STORE],
  "engine-steps": SHIM,
  forecast: ["src/cost", "src/diagnosis", "src/sidecar/restore"],
  predictions: ["src/cost", "src/sidecar/restore"],
  naming: ["python-shim/tierkv/connectors/vllm/naming"],
  "first-hit": WHOLE,
  "real-sizes": WHOLE,
  windows: WHOLE,
  conversations: WHOLE,
  "at-once": WHOLE,
  swap: WHOLE,
  worth: ["src/cost", "src/sidecar/restore", "src/sidecar/save"],
  crowd: WHOLE,
  "one-prefix": [...SHIM, ...SIDECAR],
  sglang: ["python-shim/tierkv", ...SIDECAR],
  "never-slower": WHOLE,
  demo: WHOLE,
  "bench/rivals": [...WHOLE, ...CODEC],
  "bench/routers": GATEWAY,
};

/** Files besides those of `MEASURED` that belong to a bench itself. */
export function ownFiles(bench) {
  return bench.startsWith("bench/") ? [bench] : [`bench/${bench}.js`];
}
