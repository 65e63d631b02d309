// Owns plain TCP as the yardstick: two Node processes, one connection each way, reads into preallocated memory.
import { once } from "node:events";
import { connect, createServer } from "node:net";
import { noise } from "./blocks.js";
import { median, timed } from "./figures.js";

const MIB = 2 ** 20;
const WRITE_BYTES = MIB;
/** Bytes queued in the kernel ahead, enough that it never runs dry. */
const AHEAD_BYTES = 4 * MIB;
/** Bytes of a round from which the time of more bytes follows, and rounds. */
const SET_BYTES = 512 * MIB;
const ROUNDS = 5;

export const TCP_SAYS =
  "raw TCP: two Node processes over loopback, one connection, 1 MiB writes, reads straight into memory touched before; nothing is checked";

/** Returns `bytes` of touched memory, larger than any cache when `bytes` is. */
export function setOf(bytes) {
  return noise(bytes);
}

/** Writes all of `data`, a few writes ahead of the kernel. */
export async function pump(socket, data) {
  for (let at = 0; at < data.length; at += WRITE_BYTES) {
    socket.write(data.subarray(at, at + WRITE_BYTES));
    if (socket.writableLength >= AHEAD_BYTES) await once(socket, "drain");
  }
}

/** Returns `onread` options of a socket: each read continues where the last ended, wrapping around `target`. */
export function receiver(target, onBytes) {
  let at = 0;
  return {
    buffer: () => target.subarray(at, Math.min(at + WRITE_BYTES, target.length)),
    callback: (count) => {
      at = (at + count) % target.length;
      onBytes(count);
      return true;
    },
  };
}

/** The near side. `send` and `receive` move one set of `bytes` and resolve when its last byte has arrived. */
export class TcpYardstick {
  #wake = () => {};
  #left = 0;

  static async open(stand, bytes) {
    const yardstick = new TcpYardstick();
    yardstick.set = setOf(bytes);
    const server = createServer();
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const [port, [out]] = await Promise.all([
      stand.tcpPeer(server.address().port, bytes),
      once(server, "connection"),
    ]);
    server.close();
    yardstick.out = out;
    const onBytes = (count) => yardstick.#onBytes(count);
    const onread = receiver(setOf(bytes), onBytes);
    yardstick.in = connect({ port, host: "127.0.0.1", onread });
    await once(yardstick.in, "connect");
    for (const socket of [yardstick.in, yardstick.out]) {
      socket.setNoDelay(true);
      socket.on("error", () => {});
    }
    return yardstick;
  }

  async send() {
    const taken = once(this.out, "data");
    await pump(this.out, this.set);
    await taken;
  }

  receive() {
    this.#left = this.set.length;
    return new Promise((resolve) => {
      this.#wake = resolve;
      this.in.write("g");
    });
  }

  close() {
    this.in.destroy();
    this.out.destroy();
  }

  #onBytes(count) {
    this.#left -= count;
    if (this.#left === 0) this.#wake();
  }
}

/** Returns the seconds in which so many bytes arrive over one plain connection. */
export async function plainSeconds(stand, bytes) {
  const yardstick = await TcpYardstick.open(stand, SET_BYTES);
  try {
    const seconds = [];
    for (let round = 0; round < ROUNDS; round += 1) {
      seconds.push(await timed(() => yardstick.receive()));
    }
    return (median(seconds) * bytes) / SET_BYTES;
  } finally {
    yardstick.close();
  }
}
