// Owns the rehearsal: a made-up engine restores made-up prompts from a made-up vault, so that a process's first real restore runs warm code.
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { connect } from "node:net";
import type { Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { HASH_BYTES, ItemStatus, keyCount } from "../../base/block.ts";
import type { RecordClass } from "../../base/block.ts";
import type { Running } from "../../base/lifecycle.ts";
import {
  REHEARSAL_ARENA_BYTES,
  REHEARSAL_BLOCKS,
  REHEARSAL_MS,
  REHEARSAL_RESTORES,
} from "../../base/limits/general.ts";
import { silent } from "../../base/log.ts";
import type { Logger } from "../../base/log.ts";
import { newSidecarCounters } from "../../base/metrics.ts";
import { Goodput } from "../../base/native.ts";
import { nowMs, withDeadline } from "../../base/time.ts";
import { FlushFeed } from "../../client/flush-feed.ts";
import type { BlockStore, FetchWindow, Offer, Settled } from "../../client/source.ts";
import type { Config } from "../../config/config.ts";
import { startSidecar } from "../sidecar.ts";
import { encodeFrame, FrameDecoder } from "../socket/frames.ts";
import type { Fields, Frame } from "../socket/frames.ts";
import { LOCAL_PROTOCOL } from "../socket/hello.ts";

/** Begins a rehearsal beside the process's work; it never fails, and `close` ends it. */
export function startRehearsal(config: Config, logger: Logger): Running {
  const ending = new AbortController();
  const startedMs = nowMs();
  const ended = rehearse(config, ending.signal).then(
    () => logger.debug({ ms: Math.round(nowMs() - startedMs) }, "restores were rehearsed"),
    (error: unknown) => logger.debug({ err: error }, "restores were not rehearsed"),
  );
  return {
    close(): Promise<void> {
      ending.abort();
      return ended;
    },
  };
}

/** Runs a whole sidecar of its own, with counters, logs and places of its own, so that nothing of it is seen. */
async function rehearse(config: Config, signal: AbortSignal): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), "tierkv-"));
  const socket = join(folder, "s");
  const { sidecar, restore, receipts, turboQuant } = config;
  const own: Config = {
    ...config,
    sidecar: { ...sidecar, socket, arenaBytes: REHEARSAL_ARENA_BYTES, arenaDir: null },
    restore: { ...restore, when: "always" },
    receipts: { ...receipts, when: "asked" },
    turboQuant: { ...turboQuant, kvDim: null },
  };
  try {
    const running = await startSidecar({
      config: own,
      vaults: { kv: [new MadeUpVault()], ssm: [] },
      logger: silent,
      counters: newSidecarCounters(),
    });
    const engine = new MadeUpEngine(socket);
    signal.addEventListener("abort", () => engine.close());
    try {
      signal.throwIfAborted();
      await withDeadline(engine.play(), REHEARSAL_MS, "the rehearsal");
    } finally {
      engine.close();
      await running.close();
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Holds every block, and gives it without a byte: what is in a slot is read by nobody. */
class MadeUpVault implements BlockStore {
  readonly tier = "vault";
  readonly name: RecordClass = "kv";
  readonly address = "made-up";
  readonly state = "up";
  readonly trouble = "";
  readonly isDown = false;
  readonly epoch = 1;
  readonly refusal = null;
  readonly capacityBytes = null;
  readonly isDraining = false;
  readonly down: Goodput = new Goodput();
  readonly up: Goodput = new Goodput();
  readonly flushes: FlushFeed = new FlushFeed();

  close(): void {}

  find(_namespace: Buffer, keys: Buffer): Promise<readonly Offer[]> {
    const all = Buffer.alloc(Math.ceil(keyCount(keys) / 8), 0xff);
    return Promise.resolve([{ source: this, keys: all, cost: null }]);
  }

  fetch(_namespace: Buffer, { keys }: FetchWindow): Promise<Settled> {
    const statuses = new Uint8Array(keyCount(keys)).fill(ItemStatus.ACCEPTED);
    return Promise.resolve({ statuses, bytes: keys.length, reason: null });
  }

  report(_namespace: Buffer, keys: Buffer): Promise<ItemStatus[]> {
    return Promise.resolve(Array.from({ length: keyCount(keys) }, () => ItemStatus.PRESENT));
  }

  store(_namespace: Buffer, items: readonly unknown[]): Promise<ItemStatus[]> {
    return Promise.resolve(items.map(() => ItemStatus.PRESENT));
  }
}

const TOKENS = 16;
/** Sixteen tokens of one layer, one head of 64, bf16. */
const GROUP = {
  group: 0,
  class: "kv",
  layout: "attention",
  dtype: "bf16",
  tokens: TOKENS,
  tail: 0,
  layers: 1,
  heads: 1,
  dim_k: 64,
  dim_v: 64,
  layer_bytes: TOKENS * 256,
  key_offset: 0,
  value_offset: 128,
  head_stride: TOKENS * 256,
  token_stride: 256,
};

/** One rank that reads no slot. */
class MadeUpEngine {
  readonly #scheduler: Socket;
  readonly #worker: Socket;
  #isRestoring = false;
  /** Number of the plan whose end is awaited. */
  #plan = 0;
  #isDone = false;
  #onFrame: () => void = () => {};
  #failure: Error | null = null;

  constructor(path: string) {
    this.#scheduler = this.#connected(path);
    this.#worker = this.#connected(path);
  }

  async play(): Promise<void> {
    await Promise.all([once(this.#scheduler, "connect"), once(this.#worker, "connect")]);
    const hello = { t: "hello", protocol: LOCAL_PROTOCOL, engine: "made-up", rank: 0, world: 1 };
    const about = { shards: 1, pid: process.pid, shim: "made-up", vllm: "made-up" };
    send(this.#scheduler, { ...hello, ...about, role: "scheduler", windows: 1 });
    const namespace = randomBytes(HASH_BYTES);
    send(this.#scheduler, { t: "namespace", namespace, model: "made-up", parts: {} });
    send(this.#worker, { ...hello, ...about, role: "worker" });
    const lengths = { max_model_len: REHEARSAL_BLOCKS * TOKENS, step_tokens: TOKENS };
    const model = { model: "made-up", kv_blocks: REHEARSAL_BLOCKS, ...lengths };
    send(this.#worker, { t: "register", ...model, groups: [GROUP] });
    await this.#until(() => this.#isRestoring);
    for (let at = 0; at < REHEARSAL_RESTORES; at += 1) await this.#restore();
  }

  close(): void {
    this.#scheduler.destroy();
    this.#worker.destroy();
  }

  async #restore(): Promise<void> {
    this.#plan += 1;
    this.#isDone = false;
    const named = { req: "made-up", plan: this.#plan };
    const hashes = randomBytes(REHEARSAL_BLOCKS * HASH_BYTES);
    const groups = [{ group: 0, class: "kv", hashes, from: 0 }];
    send(this.#scheduler, { t: "prefetch", ...named, groups });
    send(this.#scheduler, { t: "asked", ...named });
    await this.#until(() => this.#isDone);
    const tokens = REHEARSAL_BLOCKS * TOKENS;
    send(this.#scheduler, { t: "release", ...named, begun: 1, tokens, load_us: 100 });
  }

  #connected(path: string): Socket {
    const socket = connect(path);
    const decoder = new FrameDecoder("the sidecar");
    socket.on("data", (chunk: Buffer) => {
      decoder.push(chunk);
      for (let frame = decoder.next(); frame !== null; frame = decoder.next()) this.#hear(frame);
      this.#onFrame();
    });
    socket.on("error", (error) => (this.#failure ??= error));
    socket.on("close", () => {
      this.#failure ??= new Error("the sidecar closed the connection");
      this.#onFrame();
    });
    return socket;
  }

  #hear(frame: Fields): void {
    if (frame["t"] === "arena") send(this.#worker, { t: "mapped", arena: frame["arena"] });
    else if (frame["t"] === "restore") this.#isRestoring = frame["on"] === true;
    else if (frame["t"] === "done" && frame["plan"] === this.#plan) this.#isDone = true;
  }

  async #until(holds: () => boolean): Promise<void> {
    while (!holds()) {
      if (this.#failure !== null) throw this.#failure;
      await new Promise<void>((resolve) => {
        this.#onFrame = resolve;
      });
    }
  }
}

function send(socket: Socket, frame: Frame): void {
  socket.write(encodeFrame(frame));
}
