// Owns the events of a simulated engine over real ZeroMQ: its block cache, published batches, replays, and losses.
import { encode } from "@msgpack/msgpack";
import { Publisher, Router } from "zeromq";
import { hashOfBlock, lowOf } from "../../src/gateway/hashes/forms.ts";
import type { Base } from "../../src/gateway/hashes/forms.ts";

const END = -1n;

export interface SimBlock {
  hash: bigint;
  parent: bigint | null;
  tokens: number[];
  salt: string | null;
}

type Wire = Record<string, unknown>;

export interface PublisherOptions {
  /** Batches kept for replays; 0: no replays. */
  kept?: number;
  /** Whether fields are positional arrays, as older engines send them. */
  isPositional?: boolean;
  /** Whether answers of a replay carry the topic, as newer engines send them. */
  hasTopic?: boolean;
  blockSize?: number;
  /** Batches of one replay that its socket takes; the rest is dropped, and so is the end mark where it is `silent`. */
  replaysAtOnce?: number;
  isSilent?: boolean;
  /** Ports of events and replays; `*`: any. */
  ports?: readonly [events: string, replays: string];
  /** Base of vLLM's own hashes, as releases since 0.32 make them; else another for each process. */
  base?: Base;
}

/** Delivery of a batch: `late` comes after the next one. */
export type Arrival = "once" | "never" | "twice" | "late";

/** The cache of one engine, least recently used block first, and its two sockets. */
export class SimPublisher {
  readonly blocks = new Map<bigint, SimBlock>();
  readonly blockSize: number;
  readonly #options: Required<Omit<PublisherOptions, "base">>;
  readonly #base: Base | undefined;
  /** Hashes of 32 bytes, by their published form. */
  readonly whole = new Map<bigint, Buffer>();
  #publisher = new Publisher();
  #router = new Router();
  #ports: string[];
  #sequence = 0n;
  #kept: [bigint, Buffer][] = [];
  #salt = 0n;
  #late: Buffer[] | null = null;
  /** Chooses the delivery of batches that are not marked as lost. */
  arrives: () => Arrival = () => "once";
  /** Requests for a replay so far. */
  replayed = 0;
  /** Events of all its processes, including lost ones. */
  published = 0;

  constructor(options: PublisherOptions = {}) {
    const defaults = {
      kept: 10_000,
      isPositional: false,
      hasTopic: true,
      blockSize: 4,
      replaysAtOnce: Infinity,
      isSilent: false,
      ports: ["*", "*"] as const,
    };
    this.#options = { ...defaults, ...options };
    this.#ports = [...this.#options.ports];
    this.#base = options.base;
    this.blockSize = this.#options.blockSize;
  }

  get events(): string {
    return `127.0.0.1:${this.#ports[0]}`;
  }

  get replays(): string {
    return `127.0.0.1:${this.#ports[1]}`;
  }

  /** Starts on its earlier ports as a new process: sequence numbers begin again, and its cache is empty. */
  async start(): Promise<this> {
    this.#publisher = new Publisher();
    this.#router = new Router();
    for (const [at, socket] of [this.#publisher, this.#router].entries()) {
      await bound(socket, `tcp://127.0.0.1:${this.#ports[at]}`);
      this.#ports[at] = socket.lastEndpoint!.split(":").at(-1)!;
    }
    this.blocks.clear();
    this.#sequence = 0n;
    this.#kept = [];
    this.#late = null;
    this.#salt += 1n << 32n;
    void this.#replay(this.#router);
    return this;
  }

  stop(): void {
    this.#publisher.close();
    this.#router.close();
  }

  /** Caches a prompt, block by block, as one batch; first evicts `evict` blocks, the oldest without successors. */
  async take(
    tokens: readonly number[],
    evict = 0,
    isLost = false,
    salt: string | null = null,
  ): Promise<void> {
    const events: Wire[] = [];
    for (let n = 0; n < evict; n += 1) {
      const parents = new Set([...this.blocks.values()].map(({ parent }) => parent));
      const leaf = [...this.blocks.keys()].find((hash) => !parents.has(hash));
      if (leaf === undefined) break;
      this.blocks.delete(leaf);
      events.push({ type: "BlockRemoved", block_hashes: [leaf], medium: "GPU", group_idx: 0 });
    }
    let parent: bigint | null = null;
    for (let at = 0; at + this.blockSize <= tokens.length; at += this.blockSize) {
      const own = tokens.slice(at, at + this.blockSize);
      const hash = this.#hashOf(parent, own, salt);
      if (!this.blocks.has(hash)) {
        this.blocks.set(hash, { hash, parent, tokens: own, salt });
        events.push({
          type: "BlockStored",
          block_hashes: [hash],
          parent_block_hash: parent,
          token_ids: own,
          block_size: this.blockSize,
          lora_id: null,
          medium: "GPU",
          lora_name: null,
          extra_keys: [parent === null && salt !== null ? [salt] : null],
          group_idx: 0,
        });
      }
      parent = hash;
    }
    if (events.length > 0) await this.publish(events, isLost);
  }

  /** Publishes that a vault holds a prompt's blocks, or that none does any more. */
  async tellVault(tokens: readonly number[], isHeld = true): Promise<void> {
    const events: Wire[] = [];
    let parent: bigint | null = null;
    for (let at = 0; at + this.blockSize <= tokens.length; at += this.blockSize) {
      const own = tokens.slice(at, at + this.blockSize);
      const hash = this.#hashOf(parent, own, null);
      const where = { medium: "STORAGE", group_idx: 0, locality: "REMOTE", ownership: "tierkv" };
      const held = { parent_block_hash: parent, token_ids: own, block_size: this.blockSize };
      events.push({
        type: isHeld ? "BlockStored" : "BlockRemoved",
        block_hashes: [hash],
        ...(isHeld ? held : {}),
        ...where,
      });
      parent = hash;
    }
    await this.publish(events);
  }

  /** Publishes the namespace of its blocks in vaults; null: no vault is reachable. */
  async name(namespace: Buffer | null, shards = 1, root = this.#base?.root): Promise<void> {
    const name = namespace === null ? [] : [hexOf(namespace), shards, hexOf(root!)];
    await this.publish([
      {
        type: "BlockStored",
        block_hashes: [],
        parent_block_hash: null,
        token_ids: [],
        block_size: this.blockSize,
        lora_id: null,
        medium: "STORAGE",
        lora_name: null,
        extra_keys: [["tierkv", ...name]],
        group_idx: 0,
        kv_cache_spec_kind: "full_attention",
        locality: "REMOTE",
        ownership: "tierkv",
      },
    ]);
  }

  /** Returns a prompt's hashes as a vault knows them, 32 bytes each. */
  hashes(tokens: readonly number[], salt: string | null = null): Buffer[] {
    const found: Buffer[] = [];
    let parent: bigint | null = null;
    for (let at = 0; at + this.blockSize <= tokens.length; at += this.blockSize) {
      parent = this.#hashOf(parent, tokens.slice(at, at + this.blockSize), salt);
      found.push(this.whole.get(parent)!);
    }
    return found;
  }

  async clear(isLost = false): Promise<void> {
    this.blocks.clear();
    await this.publish([{ type: "AllBlocksCleared" }], isLost);
  }

  /** `isLost`: no subscriber gets it, but a replay does. */
  async publish(events: readonly Wire[], isLost = false): Promise<void> {
    const shaped = this.#options.isPositional
      ? events.map((event) => Object.values(event))
      : events;
    // Strictly increasing like an engine's clock, so that no two batches are equal.
    const time = Date.now() / 1000 + Number(this.#sequence) / 1e6;
    const payload = Buffer.from(encode([time, shaped, 0], { useBigInt64: true }));
    const number = bytesOf(this.#sequence);
    this.#kept.push([this.#sequence, payload]);
    this.#kept = this.#kept.slice(-this.#options.kept || this.#kept.length);
    this.#sequence += 1n;
    this.published += events.length;
    await this.#send([Buffer.from("kv@sim"), number, payload], isLost ? "never" : this.arrives());
  }

  async #send(frames: Buffer[], arrival: Arrival): Promise<void> {
    const late = this.#late;
    this.#late = arrival === "late" ? frames : null;
    if (arrival === "once" || arrival === "twice") await this.#publisher.send(frames);
    if (arrival === "twice") await this.#publisher.send(frames);
    if (late !== null) await this.#publisher.send(late);
  }

  /** Returns the leading blocks of the prompt that are held. */
  prefix(tokens: readonly number[]): number {
    let parent: bigint | null = null;
    for (let at = 0; at + this.blockSize <= tokens.length; at += this.blockSize) {
      parent = this.#hashOf(parent, tokens.slice(at, at + this.blockSize), null);
      if (!this.blocks.has(parent)) return at / this.blockSize;
    }
    return Math.floor(tokens.length / this.blockSize);
  }

  /** Returns hashes that differ between processes, as with a random seed. */
  #hashOf(parent: bigint | null, tokens: readonly number[], salt: string | null): bigint {
    if (this.#base !== undefined) return this.#ownHashOf(this.#base, parent, tokens, salt);
    let hash = (parent ?? 0x9e37_79b9_7f4a_7c15n) ^ this.#salt ^ BigInt(salt?.length ?? 0);
    for (const token of tokens) {
      hash = BigInt.asUintN(
        64,
        (hash ^ BigInt(token + 1)) * 0x0000_0100_0000_01b3n + 0x1_0000_0001n,
      );
    }
    return hash;
  }

  #ownHashOf(
    base: Base,
    parent: bigint | null,
    tokens: readonly number[],
    salt: string | null,
  ): bigint {
    const above = parent === null ? base.root : this.whole.get(parent)!;
    const how = [{ adapter: null, salt }, parent === null, "tagged"] as const;
    const hash = hashOfBlock(base, above, tokens, [0, tokens.length], how)!;
    this.whole.set(lowOf(hash), hash);
    return lowOf(hash);
  }

  async #replay(router: Router): Promise<void> {
    try {
      for await (const [id, , start] of router) {
        const from = start!.readBigUInt64BE();
        const topic = this.#options.hasTopic ? [Buffer.from("kv@sim")] : [];
        const kept = this.#options.kept === 0 ? [] : this.#kept;
        const { replaysAtOnce: most, isSilent } = this.#options;
        const wanted = kept.filter(([number]) => number >= from);
        // A socket that is full takes again once some were read: the middle is missing, not the end.
        const tail = isSilent ? 0 : Math.floor(most / 4);
        for (const [at, [number, payload]] of wanted.entries()) {
          if (at >= most - tail && at < wanted.length - tail) continue;
          await router.send([id!, "", ...topic, bytesOf(number), payload]);
        }
        this.replayed += 1;
        if (!isSilent || wanted.length <= most) {
          await router.send([id!, "", ...topic, bytesOf(END), ""]);
        }
      }
    } catch {
      // The socket was closed.
    }
  }
}

const hexOf = (bytes: Buffer): string => bytes.toString("hex");

/** Retries, because a port may stay taken for a moment after it was left. */
async function bound(socket: Publisher | Router, address: string): Promise<void> {
  for (;;) {
    try {
      return await socket.bind(address);
    } catch (error) {
      if (!(error instanceof Error && "code" in error && error.code === "EADDRINUSE")) throw error;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
}

function bytesOf(number: bigint): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigInt64BE(number);
  return bytes;
}
