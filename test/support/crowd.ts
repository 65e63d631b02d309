// Owns hostile peers: many connections that are silent, slow or flood, and raw HTTP/2 frames.
import { readFileSync } from "node:fs";
import { connect } from "node:net";
import type { NetConnectOpts, Socket } from "node:net";
import { closeAfterTest } from "./vaults.ts";

/** Another address of this machine than the tests' own. */
export const ELSEWHERE = "127.0.0.2";

/** Returns the resident bytes of a process. */
export function residentBytes(pid: number): number {
  const kib = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1];
  return Number(kib) * 1024;
}

/** Returns the CPU seconds of a process so far. */
export function processorSeconds(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  const [user = 0, system = 0] = stat
    .slice(stat.lastIndexOf(")") + 2)
    .split(" ")
    .slice(11, 13)
    .map(Number);
  return (user + system) / 100;
}

/** Bytes that a connection sends: at first, and then repeatedly. */
export interface Manner {
  first?: Buffer;
  /** slow: small pieces with pauses; fast: as much as the peer takes. */
  pace?: "slow" | "fast";
  next?(): Buffer;
}

const PAUSE_MS = 100;

/** Connections that behave as their manner says. */
export class Crowd {
  readonly #sockets: Socket[] = [];
  #closed = 0;

  constructor() {
    closeAfterTest(this);
  }

  get size(): number {
    return this.#sockets.length;
  }

  /** Connections that the other side has ended. */
  get closed(): number {
    return this.#closed;
  }

  add(to: NetConnectOpts, { first, pace = "fast", next }: Manner): void {
    const socket = connect(to);
    this.#sockets.push(socket);
    socket.on("error", () => {});
    // Data is discarded, because unread data would hide the end.
    socket.resume();
    socket.on("close", () => {
      this.#closed += 1;
    });
    if (first !== undefined) socket.write(first);
    if (next === undefined) return;
    if (pace === "slow") {
      const timer = setInterval(() => socket.write(next()), PAUSE_MS);
      socket.on("close", () => clearInterval(timer));
      return;
    }
    const send = (): void => {
      if (!socket.destroyed && socket.write(next())) setImmediate(send);
    };
    socket.on("drain", send);
    socket.on("connect", send);
  }

  close(): void {
    for (const socket of this.#sockets) socket.destroy();
  }
}

/** RFC 9113, section 6. */
const TYPES = {
  data: 0,
  headers: 1,
  priority: 2,
  reset: 3,
  settings: 4,
  ping: 6,
  window: 8,
  continuation: 9,
} as const;

export const END_HEADERS = 4;

/** Returns one HTTP/2 frame, whose length field may be wrong. */
export function frame(
  type: keyof typeof TYPES,
  flags: number,
  stream: number,
  body: Buffer = Buffer.alloc(0),
  length: number = body.length,
): Buffer {
  const head = Buffer.alloc(9);
  head.writeUIntBE(length, 0, 3);
  head[3] = TYPES[type];
  head[4] = flags;
  head.writeUInt32BE(stream, 5);
  return Buffer.concat([head, body]);
}

export const PREFACE: Buffer = Buffer.concat([
  Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
  frame("settings", 0, 0),
]);

const literal = (text: string): Buffer => Buffer.from([text.length, ...Buffer.from(text)]);

/** Returns a header that is not added to any table (RFC 7541, 6.2.2). */
export function header(name: string, value: string): Buffer {
  return Buffer.concat([Buffer.from([0]), literal(name), literal(value)]);
}

/** Headers of a call of Hello, before any further ones. */
export const CALL_HEADERS: Buffer = Buffer.concat([
  Buffer.from([0x83, 0x86, 0x04]),
  literal("/tierkv.v1.Vault/Hello"),
  Buffer.from([0x01]),
  literal("vault"),
  Buffer.from([0x0f, 0x10]),
  literal("application/grpc"),
  header("te", "trailers"),
]);
