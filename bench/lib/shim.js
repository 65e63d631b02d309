// Owns a cheap stand-in for the shim: the frames of one engine of one rank, and its arena by file descriptor.
import { once } from "node:events";
import { closeSync, openSync, readdirSync, readlinkSync, readSync, writeSync } from "node:fs";
import { connect } from "node:net";
import { HASH_BYTES } from "../../dist/base/block.js";
import { encodeFrame, FrameDecoder } from "../../dist/sidecar/socket/frames.js";
import { LOCAL_PROTOCOL } from "../../dist/sidecar/socket/hello.js";

/** Finds the arena by its label in /proc, because Node cannot receive the descriptor that comes with the frame. */
function openArena(label) {
  const name = new RegExp(`tierkv-arena-(\\d+-\\d+-)?${label}( |$)`);
  for (const pid of readdirSync("/proc").filter((entry) => /^\d+$/.test(entry))) {
    const found = descriptorsOf(pid).find((path) => name.test(linkOf(path)));
    if (found !== undefined) return openSync(found, "r+");
  }
  throw new Error(`no arena ${label} on this machine`);
}

function descriptorsOf(pid) {
  try {
    return readdirSync(`/proc/${pid}/fd`).map((fd) => `/proc/${pid}/fd/${fd}`);
  } catch {
    return [];
  }
}

function linkOf(path) {
  try {
    return readlinkSync(path);
  } catch {
    return "";
  }
}

const BF16_BYTES = 2;
/** Blocks of the engine's own cache; the arena's size does not depend on it. */
const KV_BLOCKS = 1024;
const SAVE_ITEMS_MAX = 512;
/** Order of bytes in an engine's pages that the stand-in reports. */
export const ORDER = 1;

/** A `register` group: per layer (head, token, K|V), bf16, as vLLM lays pages out. */
export function attentionGroup({ tokens, layers, heads, dim }) {
  const tokenStride = dim * 2 * BF16_BYTES;
  const headStride = tokens * tokenStride;
  const where = { key_offset: 0, value_offset: dim * BF16_BYTES };
  const strides = { head_stride: headStride, token_stride: tokenStride };
  const what = { group: 0, class: "kv", layout: "attention", dtype: "bf16" };
  const counts = { tokens, tail: 0, layers, heads, dim_k: dim, dim_v: dim };
  return { ...what, ...counts, layer_bytes: heads * headStride, ...where, ...strides };
}

/** One connection; `onFrame` gets every frame, and the connection's end as `{ t: "closed" }`. */
class Line {
  constructor(path, onFrame) {
    const decoder = new FrameDecoder("the sidecar");
    this.socket = connect(path);
    this.socket.on("data", (chunk) => {
      decoder.push(chunk);
      for (let frame = decoder.next(); frame !== null; frame = decoder.next()) onFrame(frame);
    });
    this.socket.on("error", () => {});
    this.socket.on("close", () => onFrame({ t: "closed" }));
  }

  send(frame) {
    this.socket.write(encodeFrame(frame));
  }
}

/** A stand-in for an engine of one rank. */
export class Shim {
  #credits = [];
  #arena = null;
  #namespace = null;
  #fd = null;
  #plan = 0;
  #placed = [];
  #held = null;
  #failure = null;
  /** Promise to settle once its condition holds; checked after every frame. */
  #waiting = null;

  /** Starts and waits until the arena is mapped, restores are on, credits are there and named weights have their fidelity. */
  static async start(path, { engine, group, maxModelLen, namespace, weights, hello: more = {} }) {
    const shim = new Shim();
    shim.#namespace = namespace;
    const hello = {
      t: "hello",
      protocol: LOCAL_PROTOCOL,
      engine,
      rank: 0,
      world: 1,
      shards: 1,
      ...more,
    };
    const versions = { pid: process.pid, shim: "bench", vllm: "bench" };
    shim.scheduler = new Line(path, (frame) => shim.#onFrame(frame));
    shim.worker = new Line(path, (frame) => shim.#onFrame(frame));
    shim.scheduler.send({ ...hello, ...versions, role: "scheduler" });
    if (weights !== undefined) {
      shim.scheduler.send({ t: "weights", weights, order: ORDER });
      await shim.#until(() => shim.fidelity !== undefined);
    }
    shim.scheduler.send({ t: "namespace", namespace, model: "bench", parts: {} });
    shim.worker.send({ ...hello, ...versions, role: "worker" });
    const lengths = { max_model_len: maxModelLen, step_tokens: maxModelLen };
    const model = { model: "bench", ...lengths, kv_blocks: KV_BLOCKS };
    shim.worker.send({ t: "register", ...model, groups: [group] });
    shim.isRestoring = false;
    await shim.#until(() => shim.isRestoring && shim.#credits.length > 0);
    return shim;
  }

  get slotCount() {
    return this.#arena.slot_count;
  }

  writeSlot(slot, page) {
    writeSync(this.#fd, page, 0, page.length, slot * this.#arena.slot_bytes);
  }

  readSlot(slot, bytes) {
    const page = Buffer.alloc(bytes);
    readSync(this.#fd, page, 0, bytes, slot * this.#arena.slot_bytes);
    return page;
  }

  /** Announces the blocks as saved, each in the next free slot; resolves to the slots when all are announced. */
  async save(blocks) {
    const slots = [];
    while (slots.length < blocks.length) {
      await this.#until(() => this.#credits.length > 0);
      const part = blocks.slice(slots.length, slots.length + SAVE_ITEMS_MAX);
      const leases = this.#credits.splice(0, part.length);
      const items = leases.map(([slot, generation], index) => {
        const { hash, parent, endTokens, anchor } = part[index];
        return [slot, generation, 0, hash, parent, endTokens, 0, anchor];
      });
      this.worker.send({ t: "save", arena: this.#arena.arena, namespace: this.#namespace, items });
      slots.push(...leases.map(([slot]) => slot));
    }
    return slots;
  }

  /** Restores the blocks; resolves to their slots when the last is placed. `handoff`: tokens that a producer saves now. */
  async restore(blocks, options = {}) {
    const placed = await this.ask(blocks, options);
    if (placed.length === blocks.length) return placed;
    const { length } = placed;
    throw new Error(`${length} of ${blocks.length} blocks were restored (${this.doneReason})`);
  }

  /** Restores the blocks that are held; resolves to their slots. */
  async ask(blocks, { handoff = 0 } = {}) {
    this.#prefetch(Buffer.concat(blocks.map(({ hash }) => hash)), 0, handoff);
    await this.#until(() => this.doneReason !== null);
    return this.#placed;
  }

  /** Asks which blocks are held, without fetching; resolves to the bitmap. */
  async lookUp(hashes) {
    this.#prefetch(hashes, hashes.length / HASH_BYTES);
    await this.#until(() => this.#held !== null);
    return this.#held;
  }

  #prefetch(hashes, from, handoff = 0) {
    this.#plan += 1;
    this.#placed = [];
    this.#held = null;
    this.doneReason = null;
    const groups = [{ group: 0, class: "kv", hashes, from }];
    this.scheduler.send({ t: "prefetch", req: "bench", plan: this.#plan, groups, handoff });
  }

  /** Returns the slots of the last restore. */
  release() {
    this.scheduler.send({ t: "release", req: "bench", plan: this.#plan });
  }

  async close() {
    const lines = [this.scheduler, this.worker];
    const closed = lines.map(({ socket }) => once(socket, "close"));
    for (const { socket } of lines) socket.destroy();
    await Promise.all(closed);
    if (this.#fd !== null) closeSync(this.#fd);
  }

  #onFrame(frame) {
    if (frame.t === "arena") this.#map(frame);
    else if (frame.t === "credits") this.#credits.push(...pairs(frame.slots));
    else if (frame.t === "restore") this.isRestoring = frame.on;
    else if (frame.t === "placed") this.#placed.push(...numbers(frame.slots));
    else if (frame.t === "fidelity") this.fidelity = frame.fidelity;
    else if (frame.t === "refuse") this.#failure = new Error(frame.message);
    else if (frame.t === "closed") this.#failure ??= new Error("the sidecar closed the connection");
    else if (frame.plan === this.#plan) this.#onPlan(frame);
    this.#check();
  }

  #onPlan(frame) {
    if (frame.t === "held") this.#held = frame.groups[0].held;
    else if (frame.t === "done") this.doneReason = frame.reason;
  }

  #map(frame) {
    this.#arena = frame;
    this.#fd = openArena(frame.arena);
    this.worker.send({ t: "mapped", arena: frame.arena });
  }

  #until(condition) {
    return new Promise((resolve, reject) => {
      this.#waiting = { condition, resolve, reject };
      this.#check();
    });
  }

  #check() {
    if (this.#waiting === null) return;
    const { condition, resolve, reject } = this.#waiting;
    if (this.#failure === null && !condition()) return;
    this.#waiting = null;
    if (this.#failure === null) resolve();
    else reject(this.#failure);
  }
}

function numbers(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  return Array.from({ length: bytes.length / 4 }, (_none, index) =>
    view.getUint32(index * 4, true),
  );
}

function pairs(bytes) {
  const flat = numbers(bytes);
  return Array.from({ length: flat.length / 2 }, (_none, at) => [flat[at * 2], flat[at * 2 + 1]]);
}
