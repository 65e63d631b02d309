// Owns the messages of the local socket: their TypeScript shapes, and the check of every field a shim sends.
import { asBuffer, HASH_BYTES } from "../../base/block.ts";
import type { Namespace, RecordClass } from "../../base/block.ts";
import { AUDIT_HASHES_MAX } from "../../base/limits/again.ts";
import { WEIGHTS_NAME_BYTES_MAX } from "../../base/limits/codec.ts";
import {
  EXPLAIN_MAX,
  GROUPS_MAX,
  PLAN_KEYS_MAX,
  SAVE_ITEMS_MAX,
  STEP_ROWS_MAX,
  UNASKED_ROWS_MAX,
} from "../../base/limits/general.ts";
import { recordKeysTenant } from "../../base/native.ts";
import type { Step } from "../../cost/prefill.ts";
import { parseAsked, parseLonger, parseReceipt, readNamespace } from "./asked.ts";
import type { LongerBlocks, PrefetchGroup } from "./asked.ts";
import { parseDivergences } from "./divergence.ts";
import type { Diverged } from "./divergence.ts";
import type { Fields } from "./frames.ts";
import { parseHello } from "./hello.ts";
import type { Hello } from "./hello.ts";
import { Reader } from "./reader.ts";
import { LEFT_REASONS, UNASKED_REASONS } from "./reasons.ts";
import type { UnaskedReason } from "./reasons.ts";
import { parseSession, parseSessions } from "./session.ts";
import type { SessionMessage, SessionsQuestion } from "./session.ts";

/** One KV-cache group of one rank, as the engine describes it; offsets and strides in bytes. */
export interface GroupSpec {
  group: number;
  class: RecordClass;
  layout: "attention" | "opaque";
  dtype: "bf16" | "f16" | "f32" | "u8";
  tokens: number;
  /** Blocks needed before a boundary; 0: all. */
  tail: number;
  layers: number;
  heads: number;
  dimK: number;
  dimV: number;
  layerBytes: number;
  keyOffset: number;
  valueOffset: number;
  headStride: number;
  tokenStride: number;
}

export interface Register {
  t: "register";
  model: string;
  maxModelLen: number;
  /** Most tokens that one step computes. */
  stepTokens: number;
  kvBlocks: number;
  groups: GroupSpec[];
}

export interface Prefetch {
  t: "prefetch";
  req: string;
  plan: number;
  groups: PrefetchGroup[];
  /** Tenant that its blocks are stored for; 0: none in particular. */
  tenant: number;
  /** Tokens of the prompt behind the asked ones, where it is longer than one look-up. */
  beyond: number;
  /** Requests that came earlier and that the engine has not begun. */
  ahead: number;
  /** Tokens that another engine is saving now; the plan waits for them. */
  handoff: number;
  /** The longer blocks that they are saved in; null: blocks of equal length. */
  longer: LongerBlocks | null;
  /** True for a prompt that continues an earlier request or is wanted later: the engine saves its blocks first. */
  returns: boolean;
  /** The client's trace context; empty: none came. */
  traceparent: string;
  /** Name of its receipt; empty: none was asked for. */
  receipt: string;
}

export interface SaveItem {
  slot: number;
  generation: number;
  group: number;
  hash: Buffer;
  parent: Buffer;
  endTokens: number;
  /** Tenant of the block; 0: none in particular. */
  tenant: number;
  /** Hash of the first block of its run, for placement; its own hash where the shim gives none. */
  anchor: Buffer;
}

export interface Save {
  t: "save";
  arena: number;
  /** Namespace of the weights that computed the blocks; the scheduler may have sent another meanwhile, on its own connection. */
  namespace: Namespace;
  items: SaveItem[];
}

export interface Release {
  t: "release";
  req: string;
  plan: number;
  /**
   * Tokens loaded, behind `from`; 0: the plan was not used. `tookUs`: from the look-up until all were loaded, by an engine without
   * other requests; 0: not known. `isBegun`: its request got blocks, so it was not aborted or dropped.
   */
  tokens: number;
  from: number;
  loadUs: number;
  tookUs: number;
  isBegun: boolean;
  /** Why the engine went on without it; empty: it did not, or does not say. */
  why: string;
}

/** Sent after a release with `tookUs`, once the request has a token, of an engine that had no other request until then. */
export interface Answered {
  t: "answered";
  req: string;
  plan: number;
  /** Tokens of its prompt. */
  tokens: number;
  /** Microseconds from its arrival at the engine's server to its first token. */
  us: number;
}

/** Sent when the engine could take this request and waits for its plan. */
export interface AskedFor {
  t: "asked";
  req: string;
  plan: number;
}

/** Sent as an engine loads a plan's blocks while others come. */
export interface Loaded {
  t: "loaded";
  req: string;
  plan: number;
  /** Prompt tokens before which all ranks have copied every block, so that their slots return. */
  tokens: number;
}

/** Identifies what an engine computes with, and asks for the fidelity of its blocks. */
export interface WeightsMessage {
  t: "weights";
  /** Name of the weights: a digest, and the generation where they were changed in place. */
  weights: string;
  /** Version of the order in which its records hold K and V; 0: not proven. */
  order: number;
}

/** Asks whether vaults hold these blocks now, for an engine that publishes events. */
export interface Audit {
  t: "audit";
  n: number;
  groups: PrefetchGroup[];
}

export type SchedulerMessage =
  | { t: "namespace"; namespace: Namespace; model: string }
  | WeightsMessage
  | Prefetch
  | Audit
  | AskedFor
  | Loaded
  | Release
  | Answered;

export type WorkerMessage =
  | Register
  | { t: "mapped"; arena: number }
  | { t: "unmapped"; arena: number; reason: string }
  | Save
  | { t: "return"; arena: number; slots: Uint32Array };

/** A request for which the scheduler sent no prefetch. */
export interface Unasked {
  req: string;
  why: UnaskedReason;
  /** Tokens of its prompt. */
  tokens: number;
  /** Tokens that the engine held itself. */
  ownTokens: number;
  traceparent: string;
}

/** Progress of an engine's name; only a complete one is announced, and no block is saved or restored before. */
export interface NamingState {
  percent: number;
  /** Reason why there will be no name; empty: there may be one. */
  refused: string;
  /** True when stored blocks of the name differ from what the engine computes. */
  distrusted: boolean;
}

export type CommonMessage =
  | { t: "ping"; n: number }
  | {
      t: "counts";
      counters: [string, number][];
      steps: Step[];
      unasked: Unasked[];
      diverged: Diverged[];
      naming: NamingState | null;
      /** Whether blocks are left that its workers have not copied; null: as before. */
      saving: boolean | null;
    }
  | { t: "status" }
  | { t: "explain"; req: string; most: number }
  | SessionsQuestion;

export type ShimMessage = Hello | SessionMessage | SchedulerMessage | WorkerMessage | CommonMessage;

/** Why no more blocks of a plan will be placed. */
export type DoneReason =
  | "complete"
  | "end_of_hit"
  | "no_slot"
  | "vault_down"
  | "bad_record"
  | "flushed"
  | "quarantined"
  | "deadline"
  | "slower"
  | "not_ready"
  | "overload";

export type SidecarMessage =
  | {
      t: "welcome";
      protocol: number;
      sidecar: string;
      wait_ms: number;
      stall_ms: number;
      verify_every: number;
      save_slots_max: number;
    }
  /** Answers `weights`: 0 exact, else the id of the lossy codec; `otherwise`: with weights that no certificate is about. */
  | { t: "fidelity"; weights: string; fidelity: number; otherwise: number }
  | { t: "refuse"; code: string; message: string }
  /** Sent with the arena's descriptor. */
  | {
      t: "arena";
      arena: number;
      bytes: number;
      slot_bytes: number;
      slot_count: number;
    }
  | { t: "restore"; arena: number; on: boolean }
  | { t: "credits"; arena: number; slots: Uint8Array }
  | {
      t: "held";
      req: string;
      plan: number;
      groups: { group: number; held: Uint8Array }[];
      tokens: number;
      /** Milliseconds of computing that far; absent where the engine's rate is unknown. */
      compute_ms?: number;
      /** Windows in which the plan passes through the arena; 1, or absent: it fits. */
      windows?: number;
    }
  | {
      t: "placed";
      req: string;
      plan: number;
      group: number;
      first: number;
      slots: Uint8Array;
      /** Blocks among them that no vault had to send for this plan. */
      local: number;
    }
  /** Tells that the engine may allocate blocks for all tokens of the boundary, and load the ones that are placed. */
  | { t: "load"; req: string; plan: number }
  | { t: "done"; req: string; plan: number; reason: DoneReason; why?: string }
  | { t: "reclaim"; req: string; plan: number }
  /** Tells that the plan is alive: it waits for room, or for blocks asked for earlier. */
  | { t: "waits"; req: string; plan: number }
  | { t: "audited"; n: number; groups: { group: number; held: Uint8Array }[] }
  | { t: "pace"; tokens_min: number }
  | { t: "pong"; n: number }
  | { t: "explain_reply"; accounts: object[] }
  | { t: "sessions_reply"; sessions: object[]; failed: string[] }
  | { t: "status_reply"; status: object };

const COUNTER_NAME = /^[a-z][a-z0-9_]{0,63}$/;

/** Checks every field of one frame. Throws BAD_FRAME naming the field, its value and what was expected. */
export function parseMessage(fields: Fields, peer: string): ShimMessage {
  const message = new Reader(fields, "", peer);
  const name = message.text("t", 32);
  const parse = PARSERS.get(name);
  if (parse === undefined) throw message.wrong("t", "a message of docs/protocol.md section 4");
  return parse(message);
}

const PARSERS: ReadonlyMap<string, (message: Reader) => ShimMessage> = new Map<
  string,
  (message: Reader) => ShimMessage
>([
  ["hello", parseHello],
  ["register", parseRegister],
  ["mapped", (message) => ({ t: "mapped", arena: message.u32("arena") })],
  [
    "unmapped",
    (message) => ({ t: "unmapped", arena: message.u32("arena"), reason: message.text("reason") }),
  ],
  ["save", parseSave],
  [
    "return",
    (message) => ({ t: "return", arena: message.u32("arena"), slots: message.pairs("slots") }),
  ],
  ["session", parseSession],
  ["sessions", parseSessions],
  ["namespace", parseNamespace],
  [
    "weights",
    (message) => ({
      t: "weights",
      weights: message.text("weights", WEIGHTS_NAME_BYTES_MAX),
      order: message.u32("order"),
    }),
  ],
  ["prefetch", parsePrefetch],
  [
    "audit",
    (message) => ({
      t: "audit",
      n: message.count("n"),
      groups: parseAsked(message, AUDIT_HASHES_MAX),
    }),
  ],
  ["asked", (message) => ({ t: "asked", req: message.text("req"), plan: message.count("plan") })],
  [
    "loaded",
    (message) => ({
      t: "loaded",
      req: message.text("req"),
      plan: message.count("plan"),
      tokens: message.count("tokens"),
    }),
  ],
  [
    "release",
    (message) => ({
      t: "release",
      req: message.text("req"),
      plan: message.count("plan"),
      tokens: message.has("tokens") ? message.count("tokens") : 0,
      from: message.has("from") ? message.count("from") : 0,
      loadUs: message.has("load_us") ? message.count("load_us") : 0,
      tookUs: message.has("took_us") ? message.count("took_us") : 0,
      isBegun: message.has("begun") && message.count("begun") === 1,
      why: message.has("why") ? message.oneOf("why", LEFT_REASONS) : "",
    }),
  ],
  [
    "answered",
    (message) => ({
      t: "answered",
      req: message.text("req"),
      plan: message.count("plan"),
      tokens: message.count("tokens"),
      us: message.count("us"),
    }),
  ],
  ["counts", parseCounts],
  ["ping", (message) => ({ t: "ping", n: message.count("n") })],
  ["status", () => ({ t: "status" })],
  [
    "explain",
    (message) => ({
      t: "explain",
      req: message.text("req"),
      most: message.u32("most", 1, EXPLAIN_MAX),
    }),
  ],
]);

function parseRegister(message: Reader): Register {
  return {
    t: "register",
    model: message.name("model"),
    maxModelLen: message.u32("max_model_len", 1),
    stepTokens: message.u32("step_tokens", 1),
    kvBlocks: message.u32("kv_blocks", 1),
    groups: message.maps("groups", 1, GROUPS_MAX).map(parseGroup),
  };
}

function parseGroup(group: Reader): GroupSpec {
  return {
    group: group.u32("group", 0, 0xffff),
    class: group.oneOf("class", ["kv", "ssm"]),
    layout: group.oneOf("layout", ["attention", "opaque"]),
    dtype: group.oneOf("dtype", ["bf16", "f16", "f32", "u8"]),
    tokens: group.u32("tokens", 1),
    tail: group.u32("tail"),
    layers: group.u32("layers", 1),
    heads: group.u32("heads"),
    dimK: group.u32("dim_k"),
    dimV: group.u32("dim_v"),
    layerBytes: group.u32("layer_bytes", 1),
    keyOffset: group.u32("key_offset"),
    valueOffset: group.u32("value_offset"),
    headStride: group.u32("head_stride"),
    tokenStride: group.u32("token_stride"),
  };
}

function parseNamespace(message: Reader): ShimMessage {
  return { t: "namespace", namespace: readNamespace(message), model: message.name("model") };
}

function parsePrefetch(message: Reader): Prefetch {
  return {
    t: "prefetch",
    req: message.text("req"),
    plan: message.count("plan"),
    tenant: message.has("tenant") ? recordKeysTenant(message.count("tenant")) : 0,
    beyond: message.has("beyond") ? message.count("beyond") : 0,
    ahead: message.has("ahead") ? message.count("ahead") : 0,
    handoff: message.has("handoff") ? message.count("handoff") : 0,
    longer: message.has("longer") ? parseLonger(message.map("longer"), PLAN_KEYS_MAX) : null,
    returns: message.has("returns") && message.count("returns") > 0,
    traceparent: message.has("traceparent") ? message.text("traceparent") : "",
    receipt: message.has("receipt") ? parseReceipt(message) : "",
    groups: parseAsked(message, PLAN_KEYS_MAX),
  };
}

function parseSave(message: Reader): Save {
  const items = message.rows("items", 6, SAVE_ITEMS_MAX, 2).map((row) => ({
    slot: row.u32(0),
    generation: row.u32(1),
    group: row.u32(2, 0, 0xffff),
    hash: asBuffer(row.bytes(3, HASH_BYTES, HASH_BYTES)),
    parent: asBuffer(row.bytes(4, HASH_BYTES, HASH_BYTES)),
    endTokens: row.count(5),
    tenant: row.has(6) ? recordKeysTenant(row.count(6)) : 0,
    anchor: asBuffer(row.bytes(row.has(7) ? 7 : 3, HASH_BYTES, HASH_BYTES)),
  }));
  return { t: "save", arena: message.u32("arena"), namespace: readNamespace(message), items };
}

function parseCounts(message: Reader): ShimMessage {
  const counters = message.map("counters");
  const names = counters.names();
  for (const name of names) {
    if (!COUNTER_NAME.test(name)) throw counters.wrong(name, "a lower-case counter name");
  }
  const rows = message.has("steps") ? message.rows("steps", 3, STEP_ROWS_MAX) : [];
  const steps = rows.map((row) => ({
    tokens: row.count(0),
    attended: row.count(1),
    seconds: row.count(2) / 1e6,
  }));
  const unasked = (
    message.has("unasked") ? message.rows("unasked", 4, UNASKED_ROWS_MAX, 1) : []
  ).map((row) => ({
    req: row.text(0),
    why: row.oneOf(1, UNASKED_REASONS),
    tokens: row.count(2),
    ownTokens: row.count(3),
    traceparent: row.has(4) ? row.text(4) : "",
  }));
  const counted = names.map((name): [string, number] => [name, counters.count(name)]);
  const naming = message.has("naming") ? parseNaming(message.map("naming")) : null;
  const diverged = parseDivergences(message);
  const saving = message.has("saving") ? message.u32("saving", 0, 1) === 1 : null;
  return { t: "counts", counters: counted, steps, unasked, diverged, naming, saving };
}

function parseNaming(fields: Reader): NamingState {
  const distrusted = fields.has("distrusted") && fields.u32("distrusted", 0, 1) === 1;
  return { percent: fields.u32("percent", 0, 100), refused: fields.text("refused"), distrusted };
}
