// Owns a gRPC relay between a client and a vault that damages, drops, delays or hangs what passes; also a command of its own.
import { once } from "node:events";
import { createServer } from "node:net";
import { createInterface } from "node:readline";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { Client, credentials, Metadata, Server, ServerCredentials, status } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const PROTO_DIR = new URL("../../proto/", import.meta.url);
const protos = loadSync(
  ["tierkv.proto", "health.proto"].map((name) => fileURLToPath(new URL(name, PROTO_DIR))),
  { longs: Number, defaults: true },
);
const SERVICES = ["tierkv.v1.Vault", "grpc.health.v1.Health"].map((name) => protos[name]);
const LIMITS = {
  "grpc.max_receive_message_length": 8 << 20,
  "grpc.max_send_message_length": 8 << 20,
};

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
  calls: 0,
  chunks: 0,
  corrupted: 0,
  swapped: 0,
  dropped: 0,
  hung: 0,
  delayed: 0,
};

/** Listens and relays until closed. Types and the meaning of every fault: fault-proxy.d.ts. */
export async function startFaultProxy({ target, listen = "127.0.0.1:0", faults = {} }) {
  const relay = new Relay(target, faults);
  const server = new Server({ ...LIMITS, "grpc.enable_channelz": 0 });
  for (const service of SERVICES) server.addService(service, relay.handlers(service));
  const injector = server.createConnectionInjector(ServerCredentials.createInsecure());
  const listener = createServer((socket) => {
    relay.adopt(socket);
    injector.injectConnection(socket);
  });
  const [host, port] = listen.split(":");
  listener.listen(Number(port), host);
  await once(listener, "listening");
  return {
    address: `${host}:${listener.address().port}`,
    counts: () => ({ ...relay.counts }),
    set: (change) => relay.set(change),
    close: async () => {
      listener.close();
      relay.close();
      server.forceShutdown();
      await once(listener, "close");
    },
  };
}

class Relay {
  counts = { ...NO_COUNTS };
  #faults;
  #client;
  #sockets = new Set();
  /** Chunks seen since the faults were set: `...At` counts these. */
  #chunk = 0;
  #freeAtMs = 0;
  #isClosed = false;

  constructor(target, faults) {
    this.set(faults);
    this.#client = new Client(target, credentials.createInsecure(), {
      ...LIMITS,
      "grpc.use_local_subchannel_pool": 1,
      "grpc.max_reconnect_backoff_ms": 200,
    });
  }

  set(change) {
    this.#faults = { ...NO_FAULTS, ...change };
    this.#chunk = 0;
    this.#freeAtMs = 0;
  }

  adopt(socket) {
    this.counts.connections += 1;
    this.#sockets.add(socket);
    socket.once("close", () => this.#sockets.delete(socket));
  }

  close() {
    this.#isClosed = true;
    this.#dropAll();
    this.#client.close();
  }

  handlers(service) {
    return Object.fromEntries(
      Object.entries(service).map(([name, method]) => [name, this.#handler(method)]),
    );
  }

  #handler(method) {
    if (method.requestStream) return (call) => this.#relayDuplex(method, call);
    if (method.responseStream) return (call) => this.#relayServerStream(method, call);
    return (call, callback) => this.#relayUnary(method, call, callback);
  }

  async #relayUnary(method, call, callback) {
    this.counts.calls += 1;
    await this.#delay();
    if (this.#isClosed) return;
    const upstream = this.#client.makeUnaryRequest(
      method.path,
      method.requestSerialize,
      method.responseDeserialize,
      call.request,
      new Metadata(),
      { deadline: call.getDeadline() },
      (error, reply) => callback(error === null ? null : statusOf(error), reply),
    );
    call.once("cancelled", () => upstream.cancel());
  }

  #relayServerStream(method, call) {
    this.counts.calls += 1;
    const upstream = this.#client.makeServerStreamRequest(
      method.path,
      method.requestSerialize,
      method.responseDeserialize,
      call.request,
      new Metadata(),
      { deadline: call.getDeadline() },
    );
    this.#pipe(upstream, call, "fetch");
    upstream.on("error", (error) => call.emit("error", statusOf(error)));
    call.once("cancelled", () => upstream.cancel());
  }

  #relayDuplex(method, call) {
    this.counts.calls += 1;
    const upstream = this.#client.makeBidiStreamRequest(
      method.path,
      method.requestSerialize,
      method.responseDeserialize,
      new Metadata(),
      { deadline: call.getDeadline() },
    );
    this.#pipe(upstream, call, "answers");
    this.#pipe(call, upstream, "store");
    upstream.on("error", (error) => call.emit("error", statusOf(error)));
    call.once("cancelled", () => upstream.cancel());
  }

  /** One message after another from `from` to `to`: a stopped reader stops the sender, a swallowed message everything. */
  #pipe(from, to, direction) {
    // The end may be announced while the last message is still held back.
    let isPassing = false;
    let isEnded = false;
    from.on("data", (message) => {
      from.pause();
      isPassing = true;
      void this.#pass(message, direction).then((goesOn) => {
        if (!goesOn) return;
        isPassing = false;
        if (to.write(message)) from.resume();
        else to.once("drain", () => from.resume());
        if (isEnded) to.end();
      });
    });
    from.on("end", () => {
      isEnded = true;
      if (!isPassing) to.end();
    });
  }

  /** False when the message must not be passed on. */
  async #pass(message, direction) {
    if (!message.chunk) return true;
    await this.#carry(message.chunk.pieces);
    if (direction !== this.#faults.direction) return true;
    this.counts.chunks += 1;
    this.#chunk += 1;
    await this.#delay();
    const { corruptEvery, corruptAt, swapAt, dropAt, hangAt } = this.#faults;
    const { pieces } = message.chunk;
    const isDue = corruptEvery > 0 && this.#chunk % corruptEvery === 0;
    if (isDue || this.#chunk === corruptAt) this.counts.corrupted += flipByte(pieces);
    if (this.#chunk === swapAt) this.counts.swapped += swapRecords(pieces);
    if (this.#chunk === dropAt) {
      this.counts.dropped += 1;
      this.#dropAll();
      return false;
    }
    if (this.#chunk === hangAt) {
      this.counts.hung += 1;
      return false;
    }
    return true;
  }

  /** A link of so many bytes per second, shared by all streams. */
  async #carry(pieces) {
    const { bytesPerSecond } = this.#faults;
    if (bytesPerSecond === 0) return;
    const bytes = pieces.reduce((sum, { data }) => sum + data.length, 0);
    const nowMs = performance.now();
    this.#freeAtMs = Math.max(this.#freeAtMs, nowMs) + (bytes / bytesPerSecond) * 1000;
    // What is still on its way keeps nobody from ending.
    await delay(this.#freeAtMs - nowMs, undefined, { ref: false });
  }

  async #delay() {
    if (this.#faults.delayMs === 0) return;
    this.counts.delayed += 1;
    await delay(this.#faults.delayMs);
  }

  #dropAll() {
    for (const socket of this.#sockets) socket.resetAndDestroy();
  }
}

function statusOf(error) {
  return { code: error.code ?? status.UNKNOWN, details: error.details ?? error.message };
}

/** Flips one bit in the last byte of the longest piece: payload, never a header. Returns how many bytes it changed. */
function flipByte(pieces) {
  const piece = pieces.toSorted((a, b) => b.data.length - a.data.length)[0];
  if (piece === undefined || piece.data.length === 0) return 0;
  // A copy: the buffer may be shared with whoever sent it.
  piece.data = Buffer.from(piece.data);
  piece.data[piece.data.length - 1] ^= 1;
  return 1;
}

/** Gives two whole records of one chunk each other's item number: right checksums, wrong keys. */
function swapRecords(pieces) {
  const isWhole = ({ data, recordBytes }) => data.length > 0 && data.length === recordBytes;
  const [a, b] = pieces.filter(isWhole);
  if (a === undefined || b === undefined) return 0;
  [a.item, b.item] = [b.item, a.item];
  return 2;
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
