// Owns a seeded relay of TCP bytes that injects network faults: delays, slices, damage, repeats, swaps, cuts, holds, losses.
import { once } from "node:events";
import { connect, createServer } from "node:net";
import type { AddressInfo, Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { closeAfterTest } from "../../support/vaults.ts";
import { Dice } from "./random.ts";

/** `...Every`: mean distance in bytes, per connection and direction; 0: never. */
export interface WireFaults {
  latencyMs: number;
  /** Random milliseconds on top of the latency, at most this many. */
  jitterMs: number;
  /** Limit per connection and direction. */
  bytesPerSecond: number;
  /** Bytes of one write, at most. */
  sliceBytes: number;
  corruptEvery: number;
  duplicateEvery: number;
  reorderEvery: number;
  resetEvery: number;
  /** Pauses for STALL_MS, as a lost packet looks above TCP. */
  stallEvery: number;
  /** Holds all bytes until this ends, then goes on as TCP does after a partition. */
  hold: Way;
  /** Loses bytes without an end of stream, as a vanished peer does. Connections with losses end with this fault. */
  lose: Way;
  /** Resets new connections. */
  refuse: boolean;
}

export type Way = "none" | "both" | "to-client" | "to-vault";
type Direction = "to-client" | "to-vault";

const NO_FAULTS: WireFaults = {
  latencyMs: 0,
  jitterMs: 0,
  bytesPerSecond: 0,
  sliceBytes: 0,
  corruptEvery: 0,
  duplicateEvery: 0,
  reorderEvery: 0,
  resetEvery: 0,
  stallEvery: 0,
  hold: "none",
  lose: "none",
  refuse: false,
};

const EVENTS = ["corrupt", "duplicate", "reorder", "reset", "stall"] as const;
type Event = (typeof EVENTS)[number];

export type WireCounts = Record<
  Event | "connections" | "bytes" | "delayed" | "sliced" | "held" | "lost" | "refused",
  number
>;

const STALL_MS = 200;
/** Longest repeated stretch, in bytes. */
const DUPLICATE_BYTES_MAX = 4096;

const isOn = (way: Way, direction: Direction): boolean => way === "both" || way === direction;

/** State shared by all connections of some proxies, so that one call changes all of them. */
export class Weather {
  readonly counts: WireCounts = {
    corrupt: 0,
    duplicate: 0,
    reorder: 0,
    reset: 0,
    stall: 0,
    connections: 0,
    bytes: 0,
    delayed: 0,
    sliced: 0,
    held: 0,
    lost: 0,
    refused: 0,
  };
  readonly dice: Dice;
  faults: WireFaults = NO_FAULTS;
  /** Raised by every change. */
  version = 0;
  #changed: (() => void)[] = [];

  constructor(seed: number) {
    this.dice = new Dice(seed);
  }

  /** Replaces all faults; unnamed ones are off. */
  set(faults: Partial<WireFaults>): void {
    this.faults = { ...NO_FAULTS, ...faults };
    this.version += 1;
    for (const tell of this.#changed.splice(0)) tell();
  }

  nextChange(): Promise<void> {
    return new Promise((resolve) => {
      this.#changed.push(resolve);
    });
  }
}

/** One direction of one connection. Seed and the connection's number decide which byte meets which fault. */
class Stream {
  #from!: Socket;
  #to!: Socket;
  readonly #weather: Weather;
  readonly #direction: Direction;
  readonly #dice: Dice;
  #position = 0;
  #version = -1;
  #due: Record<Event, number> = { corrupt: 0, duplicate: 0, reorder: 0, reset: 0, stall: 0 };
  /** A piece that its successor overtakes. */
  #late: Buffer | null = null;
  #hasLost = false;
  #isEnded = false;
  #passing: Promise<void> = Promise.resolve();

  constructor(weather: Weather, direction: Direction, dice: Dice) {
    this.#weather = weather;
    this.#direction = direction;
    this.#dice = dice;
  }

  start(from: Socket, to: Socket): void {
    this.#from = from;
    this.#to = to;
    from.on("data", (data: Buffer) => {
      from.pause();
      this.#passing = this.#pass(data).then(() => void from.resume());
    });
    from.on("end", () => {
      this.#isEnded = true;
      void this.#passing.then(() => this.#finish(() => to.end()));
    });
    from.on("close", () => {
      if (!this.#isEnded) this.#finish(() => to.destroy());
    });
  }

  /** Ends a stream, silently where the peer has vanished. */
  #finish(end: () => void): void {
    if (this.#late !== null) this.#to.write(this.#late);
    this.#late = null;
    if (!isOn(this.#weather.faults.lose, this.#direction)) return end();
    void this.#weather.nextChange().then(() => this.#finish(end));
  }

  async #pass(data: Buffer): Promise<void> {
    const { counts } = this.#weather;
    counts.bytes += data.length;
    for (let rest = data; rest.length > 0 && !this.#to.destroyed;) {
      await this.#wait();
      if (this.#isLost(rest)) return;
      const { sliceBytes } = this.#weather.faults;
      const length = sliceBytes === 0 ? rest.length : 1 + this.#dice.below(sliceBytes);
      if (length < rest.length) counts.sliced += 1;
      await this.#carry(Buffer.from(rest.subarray(0, length)));
      rest = rest.subarray(length);
    }
  }

  async #wait(): Promise<void> {
    const { counts } = this.#weather;
    while (isOn(this.#weather.faults.hold, this.#direction)) {
      counts.held += 1;
      await this.#weather.nextChange();
    }
    const { latencyMs, jitterMs } = this.#weather.faults;
    if (latencyMs + jitterMs === 0) return;
    counts.delayed += 1;
    await delay(latencyMs + this.#dice.below(jitterMs + 1));
  }

  /** Whether a stream has lost bytes; it ends as soon as it could continue, because a gap makes it invalid. */
  #isLost(data: Buffer): boolean {
    if (isOn(this.#weather.faults.lose, this.#direction)) {
      this.#weather.counts.lost += data.length;
      this.#hasLost = true;
    } else if (this.#hasLost) {
      this.#cut();
    }
    return this.#hasLost;
  }

  async #carry(piece: Buffer): Promise<void> {
    this.#draw();
    const begin = this.#position;
    this.#position += piece.length;
    const { counts, faults } = this.#weather;
    const at = (event: Event): number | null => {
      if (this.#due[event] >= this.#position) return null;
      const offset = this.#due[event] - begin;
      this.#due[event] = this.#position + this.#dice.distance(faults[`${event}Every`]);
      counts[event] += 1;
      return offset;
    };
    if (at("stall") !== null) await delay(STALL_MS);
    const corrupt = at("corrupt");
    if (corrupt !== null) piece[corrupt]! ^= 1 << this.#dice.below(8);
    const cut = at("reset");
    if (cut !== null) return this.#cut(piece.subarray(0, cut));
    if (at("reorder") !== null && this.#late === null) {
      this.#late = piece;
      return;
    }
    await this.#write(piece);
    const again = at("duplicate");
    if (again !== null) await this.#write(piece.subarray(again, again + DUPLICATE_BYTES_MAX));
    const late = this.#late;
    this.#late = null;
    if (late !== null) await this.#write(late);
  }

  /** Draws new distances when the faults changed. */
  #draw(): void {
    if (this.#version === this.#weather.version) return;
    this.#version = this.#weather.version;
    for (const event of EVENTS) {
      const every = this.#weather.faults[`${event}Every`];
      this.#due[event] = this.#position + this.#dice.distance(every);
    }
  }

  async #write(piece: Buffer): Promise<void> {
    const { bytesPerSecond } = this.#weather.faults;
    if (this.#to.destroyed) return;
    const isFull = !this.#to.write(piece);
    if (bytesPerSecond > 0) await delay((piece.length / bytesPerSecond) * 1000);
    if (!isFull || this.#to.destroyed) return;
    await Promise.race([once(this.#to, "drain"), once(this.#to, "close")]).catch(() => {});
  }

  #cut(before: Buffer = Buffer.alloc(0)): void {
    if (before.length > 0) this.#to.write(before);
    this.#from.resetAndDestroy();
    this.#to.resetAndDestroy();
  }
}

export interface ByteProxy {
  readonly address: string;
  /** Resets every connection; new ones are accepted. */
  cut(): number;
  close(): Promise<void>;
}

/** Listens on `listen` and relays to `target` (both `host:port`; port 0: any). */
export async function openByteProxy(
  weather: Weather,
  target: string,
  listen = "127.0.0.1:0",
): Promise<ByteProxy> {
  const sockets = new Set<Socket>();
  const adopt = (socket: Socket): Socket => {
    sockets.add(socket.setNoDelay(true));
    socket.on("error", () => {});
    socket.once("close", () => sockets.delete(socket));
    return socket;
  };
  const server = createServer({ allowHalfOpen: true }, (client) => {
    adopt(client);
    if (weather.faults.refuse) {
      weather.counts.refused += 1;
      client.resetAndDestroy();
      return;
    }
    const dice = weather.dice.apart(`connection ${(weather.counts.connections += 1)}`);
    const [host = "", port = ""] = target.split(":");
    const vault = adopt(connect({ port: Number(port), host, allowHalfOpen: true }));
    // Both sockets open and close together.
    vault.once("error", () => client.resetAndDestroy());
    new Stream(weather, "to-vault", dice.apart("to the vault")).start(client, vault);
    new Stream(weather, "to-client", dice.apart("to the client")).start(vault, client);
  });
  const [host, port] = listen.split(":");
  server.listen(Number(port), host);
  await once(server, "listening");
  const cut = (): number => {
    for (const socket of sockets) socket.resetAndDestroy();
    return sockets.size;
  };
  return closeAfterTest({
    address: `${host}:${(server.address() as AddressInfo).port}`,
    cut,
    close: async () => {
      weather.set({});
      cut();
      if (!server.listening) return;
      server.close();
      await once(server, "close");
    },
  });
}
