// Owns a stand-in for the shim: sends real frames over the real socket, and fills and reads arena slots found in /proc.
import { closeSync, readSync, writeSync } from "node:fs";
import { connect } from "node:net";
import type { Socket } from "node:net";
import { anchorOf } from "../../src/pool/placement.ts";
import { encodeFrame, FrameDecoder } from "../../src/sidecar/socket/frames.ts";
import type { Fields, Frame } from "../../src/sidecar/socket/frames.ts";
import { LOCAL_PROTOCOL } from "../../src/sidecar/socket/hello.ts";
import { openArena } from "./arena-files.ts";
import { digest, noise } from "./records.ts";
import { closeAfterTest, until } from "./vaults.ts";

export interface GroupShape {
  group?: number;
  class?: "kv" | "ssm";
  tokens?: number;
  tail?: number;
  layers?: number;
  heads?: number;
  dim?: number;
  dtype?: "bf16" | "f32";
}

const ELEMENT_BYTES = { bf16: 2, f32: 4 } as const;

/** Makes a `register` group as the real shim sends it: per layer (head, token, K|V). */
export function makeGroup(shape: GroupShape = {}): Record<string, number | string> {
  const { group = 0, tokens = 16, layers = 2, heads = 2, dim = 32, dtype = "bf16" } = shape;
  const vectorBytes = dim * ELEMENT_BYTES[dtype];
  const tokenStride = 2 * vectorBytes;
  return {
    group,
    class: shape.class ?? "kv",
    layout: shape.class === "ssm" ? "opaque" : "attention",
    dtype,
    tokens,
    tail: shape.tail ?? (shape.class === "ssm" ? 1 : 0),
    layers,
    heads,
    dim_k: dim,
    dim_v: dim,
    layer_bytes: heads * tokens * tokenStride,
    key_offset: 0,
    value_offset: vectorBytes,
    head_stride: tokens * tokenStride,
    token_stride: tokenStride,
  };
}

/** One connection; keeps every received frame, in order. */
export class ShimClient {
  readonly frames: Fields[] = [];
  isClosed = false;
  readonly #socket: Socket;
  readonly #decoder = new FrameDecoder("the sidecar");
  #failure = "";
  /** Called with each frame on arrival. */
  onFrame: (frame: Fields) => void = () => {};

  constructor(path: string) {
    this.#socket = connect(path);
    this.#socket.on("data", (chunk) => {
      this.#decoder.push(chunk);
      for (let frame = this.#decoder.next(); frame !== null; frame = this.#decoder.next()) {
        this.frames.push(frame);
        this.onFrame(frame);
      }
    });
    this.#socket.on("error", ({ message }) => {
      this.#failure = message;
    });
    this.#socket.on("close", () => {
      this.isClosed = true;
    });
    closeAfterTest(this);
  }

  send(frame: Frame): void {
    this.#socket.write(encodeFrame(frame));
  }

  sendBytes(bytes: Buffer): void {
    this.#socket.write(bytes);
  }

  /** Stops reading, so that the sidecar's data piles up. */
  pause(): void {
    this.#socket.pause();
  }

  /** Ends our direction after everything is sent. */
  end(): void {
    this.#socket.end();
  }

  close(): void {
    this.#socket.destroy();
  }

  got(t: string): Fields[] {
    return this.frames.filter((frame) => frame["t"] === t);
  }

  /** Waits for the `count`-th frame of that name. */
  async wait(t: string, count = 1): Promise<Fields> {
    const isHere = (): boolean => this.got(t).length >= count;
    await until(isHere, `${count} x ${t}`).catch((error: Error) => {
      const came = this.frames.slice(-8).map((frame) => JSON.stringify(frame).slice(0, 200));
      const state = this.isClosed ? `closed ${this.#failure}` : "open";
      throw new Error(`${error.message}; the connection is ${state}; last came ${came.join(" ")}`);
    });
    return this.got(t)[count - 1]!;
  }

  async ended(): Promise<void> {
    await until(() => this.isClosed, "the end of the connection");
  }
}

export function helloFrame(fields: Frame): Frame {
  return {
    t: "hello",
    protocol: LOCAL_PROTOCOL,
    role: "worker",
    engine: "engine-1",
    rank: 0,
    world: 1,
    shards: fields["world"] ?? 1,
    pid: process.pid,
    shim: "0.1.0",
    vllm: "0.32.0",
    ...fields,
  };
}

/** A worker rank: maps the arena and collects its credits by itself. */
export class FakeWorker extends ShimClient {
  readonly rank: number;
  readonly groups: readonly Record<string, number | string>[];
  arena = 0;
  slotBytes = 0;
  slotCount = 0;
  credits: [number, number][] = [];
  #fd: number | null = null;

  constructor(
    path: string,
    rank: number,
    groups: readonly Record<string, number | string>[],
    isMapping = true,
  ) {
    super(path);
    this.rank = rank;
    this.groups = groups;
    this.onFrame = (frame) => {
      if (frame["t"] === "arena") this.#map(frame, isMapping);
      if (frame["t"] === "credits") this.credits.push(...toPairs(frame["slots"] as Uint8Array));
    };
  }

  writeSlot(slot: number, bytes: Buffer): void {
    writeSync(this.#fd!, bytes, 0, bytes.length, slot * this.slotBytes);
  }

  readSlot(slot: number, bytes: number): Buffer {
    const page = Buffer.alloc(bytes);
    readSync(this.#fd!, page, 0, bytes, slot * this.slotBytes);
    return page;
  }

  override close(): void {
    super.close();
    if (this.#fd !== null) closeSync(this.#fd);
    this.#fd = null;
  }

  #map(frame: Fields, isMapping: boolean): void {
    if (this.#fd !== null) closeSync(this.#fd);
    this.#fd = openArena(frame["arena"] as number);
    this.arena = frame["arena"] as number;
    this.slotBytes = frame["slot_bytes"] as number;
    this.slotCount = frame["slot_count"] as number;
    this.credits = [];
    if (isMapping) this.send({ t: "mapped", arena: this.arena });
  }
}

export interface EngineShape {
  /** More fields of the scheduler's hello. */
  hello?: Frame;
  engine?: string;
  world?: number;
  /** Below `world`: neighbouring ranks hold the same pages. */
  shards?: number;
  groups?: readonly Record<string, number | string>[];
  maxModelLen?: number;
  /** false: its workers do not map the arena. */
  isMapping?: boolean;
  /** null: the scheduler sends none. */
  namespace?: Buffer | null;
}

export interface Block {
  hash: Buffer;
  parent: Buffer;
  /** Hash of the first block of its run. */
  anchor: Buffer;
  endTokens: number;
  /** Page of each rank. */
  pages: Buffer[];
}

/** Makes blocks of one chain; the same name, index and rank give the same page. */
export function makeBlocks(name: string, count: number, pageBytes: number, world = 1): Block[] {
  const hashOf = (index: number): Buffer => digest(`${name} ${index}`);
  const seed = digest(name).readUInt32LE(0);
  return Array.from({ length: count }, (_, index) => ({
    hash: hashOf(index),
    parent: index === 0 ? Buffer.alloc(32) : hashOf(index - 1),
    anchor: hashOf(anchorOf(index)),
    endTokens: (index + 1) * 16,
    pages: Array.from({ length: world }, (_unused, rank) =>
      noise(pageBytes, seed + index * world + rank),
    ),
  }));
}

export function hashesOf(blocks: readonly Block[]): Buffer {
  return Buffer.concat(blocks.map(({ hash }) => hash));
}

/** The sidecar's frames about one plan so far. */
export interface PlanView {
  plan: number;
  held: Uint8Array | null;
  /** Slots in order by group, `shards` per block. */
  placed: Map<number, number[]>;
  reason: string | null;
  /** Reason in the same frame; null: none. */
  why: string | null;
}

/** An engine as the sidecar sees it: one scheduler connection and `world` workers. */
export class FakeEngine {
  readonly id: string;
  readonly world: number;
  readonly shards: number;
  readonly namespace: Buffer;
  /** Tenant of its next requests; 0: none. */
  tenant = 0;
  /** Trace context of the client; empty: none. */
  traceparent = "";
  readonly scheduler: ShimClient;
  readonly workers: FakeWorker[];
  readonly groups: readonly Record<string, number | string>[];
  #lastPlan = 0;

  constructor(path: string, shape: EngineShape = {}) {
    this.id = shape.engine ?? "engine-1";
    this.world = shape.world ?? 1;
    this.shards = shape.shards ?? this.world;
    this.groups = shape.groups ?? [makeGroup()];
    this.namespace = shape.namespace ?? digest("namespace of the test");
    const isNamed = shape.namespace !== null;
    const { world, shards, id: engine } = this;
    this.scheduler = new ShimClient(path);
    this.scheduler.send(helloFrame({ engine, world, shards, role: "scheduler", ...shape.hello }));
    if (isNamed) this.nameItself();
    this.workers = Array.from({ length: world }, (_, rank) => {
      const worker = new FakeWorker(path, rank, this.groups, shape.isMapping);
      worker.send(helloFrame({ engine, world, shards, rank }));
      worker.send({
        t: "register",
        model: "test/model",
        max_model_len: shape.maxModelLen ?? 512,
        step_tokens: 512,
        kv_blocks: 100,
        groups: this.groups,
      });
      return worker;
    });
  }

  /** Starts and waits until it may restore and every rank has credits. */
  static async start(path: string, shape: EngineShape = {}): Promise<FakeEngine> {
    const engine = new FakeEngine(path, shape);
    await engine.ready();
    return engine;
  }

  nameItself(): void {
    const named = { t: "namespace", namespace: this.namespace, model: "test/model", parts: {} };
    this.scheduler.send(named);
  }

  async ready(): Promise<void> {
    await this.scheduler.wait("restore");
    await until(() => this.workers.every(({ credits }) => credits.length > 0), "credits");
  }

  /** Copies the blocks into slots with credits and sends one `save` per rank. */
  save(blocks: readonly Block[], group = 0): void {
    for (const worker of this.workers) this.saveOn(worker, blocks, group);
  }

  saveOn(worker: FakeWorker, blocks: readonly Block[], group = 0): void {
    const items = blocks.map(({ hash, parent, anchor, endTokens, pages }) => {
      const [slot, generation] = worker.credits.shift() ?? [0xffff_ffff, 0];
      if (slot !== 0xffff_ffff) worker.writeSlot(slot, pages[this.#shardOf(worker.rank)]!);
      return [slot, generation, group, hash, parent, endTokens, this.tenant, anchor];
    });
    worker.send({ t: "save", arena: worker.arena, namespace: this.namespace, items });
  }

  #shardOf(rank: number): number {
    return Math.floor((rank * this.shards) / this.world);
  }

  /** Sends a prefetch of a request that the engine waits for; returns its plan number. */
  prefetch(hashes: Buffer, from = 0, group = 0): number {
    const plan = this.prefetchAhead(hashes, from, group);
    this.askFor(plan);
    return plan;
  }

  /** Sends a prefetch of a request that the engine has no room for yet. */
  prefetchAhead(hashes: Buffer, from = 0, group = 0, more: Frame = {}): number {
    const { class: recordClass } = this.groups.find((entry) => entry["group"] === group)!;
    return this.#sendPrefetch([{ group, class: recordClass!, hashes, from }], more);
  }

  askFor(plan: number): void {
    this.scheduler.send({ t: "asked", req: "request", plan });
  }

  prefetchGroups(groups: readonly Frame[], more: Frame = {}): number {
    const plan = this.#sendPrefetch(groups, more);
    this.askFor(plan);
    return plan;
  }

  #sendPrefetch(groups: readonly Frame[], more: Frame = {}): number {
    this.#lastPlan += 1;
    const asked = { t: "prefetch", req: "request", plan: this.#lastPlan, groups, ...more };
    this.scheduler.send({ ...asked, tenant: this.tenant, traceparent: this.traceparent });
    return this.#lastPlan;
  }

  /** `loaded`: tokens that it has copied, and the count of its own tokens before them. */
  release(plan: number, loaded: Frame = {}): void {
    this.scheduler.send({ t: "release", req: "request", plan, ...loaded });
  }

  view(plan: number): PlanView {
    const view: PlanView = { plan, held: null, placed: new Map(), reason: null, why: null };
    for (const frame of this.scheduler.frames) {
      if (frame["plan"] !== plan) continue;
      if (frame["t"] === "held") view.held = (frame["groups"] as { held: Uint8Array }[])[0]!.held;
      if (frame["t"] === "done") {
        view.reason = frame["reason"] as string;
        view.why = (frame["why"] as string | undefined) ?? null;
      }
      if (frame["t"] !== "placed") continue;
      const group = frame["group"] as number;
      const slots = view.placed.get(group) ?? [];
      slots.push(...toNumbers(frame["slots"] as Uint8Array));
      view.placed.set(group, slots);
    }
    return view;
  }

  async done(plan: number): Promise<PlanView> {
    await until(() => this.view(plan).reason !== null, `the end of plan ${plan}`);
    return this.view(plan);
  }

  /** Returns whether the placed block at `index` has the pages of `block`, byte for byte, on every rank. */
  holds(view: PlanView, index: number, block: Block, group = 0): boolean {
    const slots = view.placed.get(group)!;
    return this.workers.every(({ rank }, at) => {
      const shard = this.#shardOf(rank);
      const page = block.pages[shard]!;
      const slot = slots[index * this.shards + shard]!;
      return this.workers[at]!.readSlot(slot, page.length).equals(page);
    });
  }

  close(): void {
    this.scheduler.close();
    for (const worker of this.workers) worker.close();
  }
}

function toNumbers(bytes: Uint8Array): number[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  return Array.from({ length: bytes.length / 4 }, (_, index) => view.getUint32(index * 4, true));
}

export function toPairs(bytes: Uint8Array): [number, number][] {
  const list = toNumbers(bytes);
  return Array.from({ length: list.length / 2 }, (_, at) => [list[at * 2]!, list[at * 2 + 1]!]);
}
