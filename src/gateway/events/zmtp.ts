// Owns one ZMTP 3.0 connection as a SUB or a DEALER: greeting, handshake, and frames in both directions; it never binds.
import { connect } from "node:net";
import type { Socket } from "node:net";
import {
  GATEWAY_CONNECT_MS,
  GATEWAY_EVENT_BYTES_MAX,
  GATEWAY_EVENT_FRAMES_MAX,
  GATEWAY_EVENTS_KEEPALIVE_MS,
} from "../../base/limits/gateway.ts";

const GREETING_BYTES = 64;
const SIGNATURE_END = 9;
const VERSION_AT = 10;
const MECHANISM_AT = 12;
const MECHANISM_BYTES = 20;
/** Flags of a frame. */
const MORE = 1;
const LONG = 2;
const COMMAND = 4;
const SHORT_BYTES_MAX = 255;

export interface ZmtpOptions {
  host: string;
  port: number;
  type: "SUB" | "DEALER";
  /** Called when the handshake is over, so that frames may be sent. */
  onOpen(): void;
  onMessage(frames: Buffer[]): void;
  /** Called once, with the reason. */
  onClose(reason: string): void;
}

/** One connection from connecting to its end; it never reconnects. */
export class Zmtp {
  readonly #options: ZmtpOptions;
  readonly #socket: Socket;
  #pending: Buffer = Buffer.alloc(0);
  #frames: Buffer[] = [];
  #isGreeted = false;
  #isOpen = false;
  #reason: string | null = null;

  constructor(options: ZmtpOptions) {
    this.#options = options;
    const { host, port } = options;
    // The system itself first asks after two hours whether a silent publisher's machine is still there.
    const probes = { keepAlive: true, keepAliveInitialDelay: GATEWAY_EVENTS_KEEPALIVE_MS };
    this.#socket = connect({ host, port, ...probes, noDelay: true });
    // Limits the handshake only, because a silent publisher is no failure.
    this.#socket.setTimeout(GATEWAY_CONNECT_MS, () => this.#fail("no handshake in time"));
    this.#socket.on("connect", () => this.#socket.write(greeting()));
    this.#socket.on("data", (chunk) => this.#take(chunk));
    this.#socket.on("error", (error) => this.#fail(error.message));
    this.#socket.on("close", () => {
      this.#reason ??= "the connection was closed";
      options.onClose(this.#reason);
    });
  }

  send(frames: readonly Buffer[]): void {
    for (const [index, frame] of frames.entries()) {
      this.#write(index + 1 < frames.length ? MORE : 0, frame);
    }
  }

  /** Messages that lie behind the present one are dropped, because their receiver no longer expects them. */
  close(): void {
    this.#fail("the connection was closed");
  }

  #write(flags: number, body: Buffer): void {
    const isLong = body.length > SHORT_BYTES_MAX;
    const head = Buffer.alloc(isLong ? 9 : 2);
    head.writeUInt8(isLong ? flags | LONG : flags);
    if (isLong) head.writeBigUInt64BE(BigInt(body.length), 1);
    else head.writeUInt8(body.length, 1);
    this.#socket.write(Buffer.concat([head, body]));
  }

  #fail(reason: string): void {
    this.#reason ??= reason;
    this.#socket.destroy();
  }

  #take(chunk: Buffer): void {
    this.#pending = this.#pending.length === 0 ? chunk : Buffer.concat([this.#pending, chunk]);
    if (!this.#isGreeted && !this.#takeGreeting()) return;
    while (this.#reason === null && this.#takeFrame());
  }

  #takeGreeting(): boolean {
    const greeted = this.#pending;
    if (greeted.length < GREETING_BYTES) return false;
    const mechanism = greeted.toString("latin1", MECHANISM_AT, MECHANISM_AT + MECHANISM_BYTES);
    const isZmtp = greeted[0] === 0xff && greeted[SIGNATURE_END] === 0x7f;
    if (!isZmtp || (greeted[VERSION_AT] ?? 0) < 3) this.#fail("it does not speak ZMTP 3");
    else if (mechanism.replace(/\0+$/, "") !== "NULL") this.#fail("it wants a password");
    else this.#write(COMMAND, ready(this.#options.type));
    this.#pending = greeted.subarray(GREETING_BYTES);
    this.#isGreeted = true;
    return true;
  }

  /** Returns false while there is no whole frame. */
  #takeFrame(): boolean {
    const [flags = 0] = this.#pending;
    const headBytes = (flags & LONG) === 0 ? 2 : 9;
    if (this.#pending.length < headBytes) return false;
    const bytes =
      headBytes === 2 ? this.#pending.readUInt8(1) : Number(this.#pending.readBigUInt64BE(1));
    if (bytes > GATEWAY_EVENT_BYTES_MAX) {
      this.#fail(`a frame of ${bytes} bytes`);
      return false;
    }
    if (this.#pending.length < headBytes + bytes) return false;
    const body = this.#pending.subarray(headBytes, headBytes + bytes);
    this.#pending = this.#pending.subarray(headBytes + bytes);
    if ((flags & COMMAND) === 0) this.#takePart(body, (flags & MORE) !== 0);
    else this.#takeCommand(body);
    return true;
  }

  #takeCommand(body: Buffer): void {
    const name = body.toString("latin1", 1, 1 + (body[0] ?? 0));
    if (name === "ERROR") this.#fail("it refused the handshake");
    if (name !== "READY" || this.#isOpen) return;
    this.#isOpen = true;
    this.#socket.setTimeout(0);
    // Subscribes to all topics: they tell engines behind one proxy apart, and here each engine has its own address.
    if (this.#options.type === "SUB") this.send([Buffer.from([1])]);
    this.#options.onOpen();
  }

  #takePart(body: Buffer, isMore: boolean): void {
    this.#frames.push(body);
    if (this.#frames.length > GATEWAY_EVENT_FRAMES_MAX) return this.#fail("too many frames");
    if (isMore) return;
    const frames = this.#frames;
    this.#frames = [];
    this.#options.onMessage(frames);
  }
}

function greeting(): Buffer {
  const bytes = Buffer.alloc(GREETING_BYTES);
  bytes[0] = 0xff;
  bytes[SIGNATURE_END] = 0x7f;
  bytes[VERSION_AT] = 3;
  bytes.write("NULL", MECHANISM_AT, "latin1");
  return bytes;
}

function ready(type: string): Buffer {
  const property = (name: string, value: string): Buffer => {
    const bytes = Buffer.alloc(1 + name.length + 4 + value.length);
    bytes.writeUInt8(name.length);
    bytes.write(name, 1, "latin1");
    bytes.writeUInt32BE(value.length, 1 + name.length);
    bytes.write(value, 1 + name.length + 4, "latin1");
    return bytes;
  };
  const name = Buffer.from("\x05READY", "latin1");
  return Buffer.concat([name, property("Socket-Type", type), property("Identity", "")]);
}
