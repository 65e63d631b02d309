// Owns a relay between a client and a vault that injects faults into records on lanes; also a command of its own.
import { once } from "node:events";
import { connect, createServer } from "node:net";
import { createInterface } from "node:readline";
import { setTimeout as delay } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

/** docs/protocol.md, section 7. */
const MAGIC = "TKVL";
const HEADER_BYTES = 40;
const CHECKED_BYTES = 36;
const AT = { kind: 5, item: 12, recordBytes: 24, bodyBytes: 32 };
const CHUNK = 6;

const NO_FAULTS = {
  direction: "fetch",
  corruptEvery: 0,
  corruptAt: 0,
  swapAt: 0,
  dropAt: 0,
  hangAt: 0,
  delayMs: 0,
  bytesPerSecond: 0,
};
const NO_COUNTS = {
  connections: 0,
  chunks: 0,
  corrupted: 0,
  swapped: 0,
  dropped: 0,
  hung: 0,
  delayed: 0,
};

/** Listens and relays until closed. fault-proxy.d.ts has the types and the meaning of every fault. */
export async function startFaultProxy({ target, listen = "127.0.0.1:0", faults = {} }) {
  const relay = new Relay(target, faults);
  const listener = createServer((socket) => relay.adopt(socket));
  const [host, port] = listen.split(":");
  listener.listen(Number(port), host);
  await once(listener, "listening");
  return {
    address: `${host}:${listener.address().port}`,
    counts: () => ({ ...relay.counts }),
    set: (change) => relay.set(change),
    close: async () => {
      if (!listener.listening) return;
      listener.close();
      relay.dropAll();
      await once(listener, "close");
    },
  };
}

class Relay {
  counts = { ...NO_COUNTS };
  #faults;
  #target;
  #sockets = new Set();
  /** Lanes with a hanging direction. */
  #hung = new Set();
  /** Chunks counted for `...At` since the faults were set. */
  #chunk = 0;
  #freeAtMs = 0;
  /** A whole record that waits for another to swap with. */
  #swapping = null;

  constructor(target, faults) {
    this.#target = target;
    this.set(faults);
  }

  set(change) {
    this.#faults = { ...NO_FAULTS, ...change };
    this.#chunk = 0;
    this.#freeAtMs = 0;
    // Hung connections are reset, because their swallowed chunks are lost.
    for (const socket of this.#hung) socket.resetAndDestroy();
    this.#hung.clear();
  }

  adopt(client) {
    this.counts.connections += 1;
    const [host, port] = this.#target.split(":");
    const vault = connect(Number(port), host);
    for (const socket of [client, vault]) {
      socket.setNoDelay(true);
      this.#sockets.add(socket);
      socket.on("error", () => {});
      socket.once("close", () => {
        this.#sockets.delete(socket);
        client.destroy();
        vault.destroy();
      });
    }
    this.#pipe(client, vault, "store");
    this.#pipe(vault, client, "fetch");
  }

  dropAll() {
    for (const socket of this.#sockets) socket.resetAndDestroy();
  }

  /** Reads lanes frame by frame and other connections as data comes; a stopped reader stops the sender. */
  #pipe(from, to, direction) {
    let rest = Buffer.alloc(0);
    let isLane = null;
    let isHung = false;
    let passing = Promise.resolve();
    const write = async (bytes) => {
      if (!to.destroyed && !to.write(bytes))
        await Promise.race([once(to, "drain"), once(to, "close")]);
    };
    const take = async (data) => {
      rest = Buffer.concat([rest, data]);
      // A vault speaks second, in the client's protocol.
      isLane ??= rest.subarray(0, MAGIC.length).toString("latin1") === MAGIC;
      if (!isLane) {
        if (direction === "store") await this.#delay();
        await write(rest);
        rest = Buffer.alloc(0);
        return;
      }
      while (!isHung && rest.length >= HEADER_BYTES) {
        const end = HEADER_BYTES + rest.readUInt32LE(AT.bodyBytes);
        if (rest.length < end) return;
        const frame = Buffer.from(rest.subarray(0, end));
        rest = rest.subarray(end);
        const frames = await this.#pass(frame, direction);
        isHung = frames === null;
        if (isHung) this.#hung.add(from);
        for (const one of frames ?? []) await write(one);
      }
    };
    from.on("data", (data) => {
      from.pause();
      passing = passing
        .then(() => take(data))
        .then(() => from.resume())
        .catch(() => {});
    });
    from.on("end", () => void passing.then(() => to.end()));
  }

  /** Returns the bytes to pass on instead of a frame; null: nothing more. */
  async #pass(frame, direction) {
    const isChunk = frame[AT.kind] === CHUNK;
    if (!isChunk) {
      if (direction === "store") await this.#delay();
      return [frame];
    }
    await this.#carry(frame.length);
    if (direction !== this.#faults.direction) return [frame];
    this.counts.chunks += 1;
    this.#chunk += 1;
    const number = this.#chunk;
    const { corruptEvery, corruptAt, swapAt, dropAt, hangAt } = this.#faults;
    await this.#delay();
    const isDue = corruptEvery > 0 && number % corruptEvery === 0;
    if (isDue || number === corruptAt) {
      // The flipped byte lies in the payload, never in a header.
      frame[frame.length - 1] ^= 1;
      this.counts.corrupted += 1;
    }
    if (number === dropAt) {
      this.counts.dropped += 1;
      this.dropAll();
      return null;
    }
    if (number === hangAt) {
      this.counts.hung += 1;
      return null;
    }
    return this.#swapped(frame, number === swapAt);
  }

  /** Swaps the item numbers of two whole records: valid checksums, wrong keys. */
  #swapped(frame, isDue) {
    const isWhole =
      frame.readUInt32LE(AT.bodyBytes) === Number(frame.readBigUInt64LE(AT.recordBytes));
    if (!isWhole || (!isDue && this.#swapping === null)) return [frame];
    const other = this.#swapping;
    this.#swapping = frame;
    if (other === null) return [];
    this.#swapping = null;
    const [a, b] = [frame.readUInt32LE(AT.item), other.readUInt32LE(AT.item)];
    setItem(frame, b);
    setItem(other, a);
    this.counts.swapped += 2;
    return [other, frame];
  }

  /** A link of so many bytes per second, shared by all lanes. */
  async #carry(bytes) {
    const { bytesPerSecond } = this.#faults;
    if (bytesPerSecond === 0) return;
    const nowMs = performance.now();
    this.#freeAtMs = Math.max(this.#freeAtMs, nowMs) + (bytes / bytesPerSecond) * 1000;
    // Unreferenced, so that data still on its way delays no exit.
    await delay(this.#freeAtMs - nowMs, undefined, { ref: false });
  }

  async #delay() {
    if (this.#faults.delayMs === 0) return;
    this.counts.delayed += 1;
    await delay(this.#faults.delayMs);
  }
}

function setItem(frame, item) {
  frame.writeUInt32LE(item, AT.item);
  frame.writeUInt32LE(crc32c(frame.subarray(0, CHECKED_BYTES)), CHECKED_BYTES);
}

function crc32c(bytes) {
  let crc = 0xff_ff_ff_ff;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit += 1) crc = crc & 1 ? (crc >>> 1) ^ 0x82_f6_3b_78 : crc >>> 1;
  }
  return (crc ^ 0xff_ff_ff_ff) >>> 0;
}

const USAGE = `usage: node test/support/fault-proxy.js --target HOST:PORT [--listen 127.0.0.1:0] [--direction fetch|store]
  [--corrupt-every N] [--corrupt-at N] [--corrupt-once] [--swap-at N] [--drop-at N] [--hang-at N] [--delay-ms N]
  [--bytes-per-second N]
Prints {"address"} when it listens. On stdin: a line \`counts\` prints the counts, a line {"corruptAt": 1, ...} replaces
the faults. On SIGTERM it prints the counts and ends.`;

function readArguments() {
  const number = { type: "string", default: "0" };
  const { values } = parseArgs({
    options: {
      target: { type: "string" },
      listen: { type: "string", default: "127.0.0.1:0" },
      direction: { type: "string", default: "fetch" },
      "corrupt-once": { type: "boolean", default: false },
      "corrupt-every": number,
      "corrupt-at": number,
      "swap-at": number,
      "drop-at": number,
      "hang-at": number,
      "delay-ms": number,
      "bytes-per-second": number,
    },
  });
  if (values.target === undefined) throw new Error("--target is missing");
  const faults = {
    direction: values.direction,
    corruptEvery: Number(values["corrupt-every"]),
    corruptAt: values["corrupt-once"] ? 1 : Number(values["corrupt-at"]),
    swapAt: Number(values["swap-at"]),
    dropAt: Number(values["drop-at"]),
    hangAt: Number(values["hang-at"]),
    delayMs: Number(values["delay-ms"]),
    bytesPerSecond: Number(values["bytes-per-second"]),
  };
  return { target: values.target, listen: values.listen, faults };
}

async function main() {
  const print = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
  let options;
  try {
    options = readArguments();
  } catch (error) {
    process.stderr.write(`${error.message}\n${USAGE}\n`);
    process.exit(2);
  }
  const proxy = await startFaultProxy(options);
  print({ address: proxy.address });
  const lines = createInterface({ input: process.stdin });
  lines.on("line", (line) => {
    if (line.trim() !== "counts") proxy.set(JSON.parse(line));
    print({ counts: proxy.counts() });
  });
  await Promise.race([once(process, "SIGTERM"), once(process, "SIGINT")]);
  lines.close();
  print({ counts: proxy.counts() });
  await proxy.close();
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) {
  await main();
}
