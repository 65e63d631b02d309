// Owns the hello, the first frame of each connection of the local socket: the peer's role, engine and version.
import { WORLD_MAX } from "../../base/limits/general.ts";
import type { Reader } from "./reader.ts";

export const LOCAL_PROTOCOL = 2;

/** Kinds of engines; `hello` leaves vLLM's out. */
export const ENGINE_KINDS = ["vllm", "sglang", "mlx-lm"] as const;
export type EngineKind = (typeof ENGINE_KINDS)[number];

export type Role = "scheduler" | "worker" | "status";

export interface Hello {
  t: "hello";
  protocol: number;
  role: Role;
  engine: string;
  rank: number;
  world: number;
  /** Records per block; ranks that hold the same pages share one. Divides `world`. */
  shards: number;
  pid: number;
  shim: string;
  kind: EngineKind;
  /** Releases of the engine's software. */
  vllm: string;
  /** True where the engine computes on a CPU with AMX tiles. */
  hasAmxTiles: boolean;
  /** True where the engine saves for other engines, whatever it gains itself. */
  isProducer: boolean;
  /** True where a scheduler's engine loads blocks as they come, and computes the ones that do not. */
  isWindowed: boolean;
  /** Where the scheduler's engine publishes and replays KV-cache events, as vLLM is told; empty: nowhere. */
  events: string;
  replays: string;
}

const NOBODY = {
  engine: "",
  rank: 0,
  world: 1,
  shards: 1,
  pid: 0,
  shim: "",
  kind: "vllm",
  vllm: "",
  hasAmxTiles: false,
  isProducer: false,
  isWindowed: false,
  events: "",
  replays: "",
} as const;

/** Checks the version first, because another version may have other fields. */
export function parseHello(message: Reader): Hello {
  const protocol = message.u32("protocol");
  if (protocol !== LOCAL_PROTOCOL) {
    return { t: "hello", protocol, role: "status", ...NOBODY, shim: message.anyText("shim") };
  }
  const role = message.oneOf("role", ["scheduler", "worker", "status"]);
  if (role === "status") return { t: "hello", protocol, role, ...NOBODY };
  const world = message.u32("world", 1, WORLD_MAX);
  const shards = message.u32("shards", 1, world);
  if (world % shards !== 0) throw message.wrong("shards", `a divisor of world (${world})`);
  return {
    t: "hello",
    protocol,
    role,
    engine: message.name("engine"),
    rank: role === "worker" ? message.u32("rank", 0, world - 1) : 0,
    world,
    shards,
    pid: message.u32("pid"),
    shim: message.name("shim"),
    kind: message.has("kind") ? message.oneOf("kind", ENGINE_KINDS) : "vllm",
    vllm: message.name("vllm"),
    hasAmxTiles: message.has("amx_tiles") && message.u32("amx_tiles", 0, 1) === 1,
    isProducer: message.has("producer") && message.u32("producer", 1, 1) === 1,
    isWindowed: message.has("windows") && message.u32("windows", 1, 1) === 1,
    events: message.anyText("events"),
    replays: message.anyText("replays"),
  };
}
