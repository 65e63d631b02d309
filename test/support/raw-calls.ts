// Owns hand-made calls and lanes without our client's safeguards, to test a vault with faulty peers.
import { connect } from "node:net";
import type { Socket } from "node:net";
import { MADE_NOW, PROTOCOL_MAX, PROTOCOL_MIN } from "../../src/base/limits/general.ts";
import { VaultChannel } from "../../src/client/vault/channel.ts";
import { vaultService } from "../../src/wire/service.ts";
import { crc32c } from "./native.ts";
import { NAMESPACE } from "./records.ts";
import type { TestRecord } from "./records.ts";
import { closeAfterTest, SOON_MS, until } from "./vaults.ts";

const HEADER_BYTES = 40;
const CHECKED_BYTES = 36;
export const KINDS = {
  hello: 1,
  welcome: 2,
  fetch: 5,
  chunk: 6,
  status: 7,
  cancel: 8,
  offer: 9,
} as const;
const WANTED = 10;
const ERROR = 11;

const NEVER = new AbortController().signal;

export function openChannel(vault: { address: string }): VaultChannel {
  return closeAfterTest(new VaultChannel(vault.address));
}

/** Returns a token that opens a lane, once. */
export async function laneToken(channel: VaultChannel): Promise<Buffer> {
  const versions = { protocolMin: PROTOCOL_MIN, protocolMax: PROTOCOL_MAX };
  const request = { ...versions, clientVersion: "t", clientName: "t", flushed: 0 };
  const options = { timeoutMs: SOON_MS, signal: NEVER };
  const { laneToken: token } = await channel.unary(vaultService.Hello, request, options);
  return token;
}

export interface FrameFields {
  request?: number;
  /** Code of a hello: number of lanes to come. */
  code?: number;
  item?: number;
  offset?: number;
  recordBytes?: number;
}

export function laneFrame(
  kind: keyof typeof KINDS,
  body: Buffer,
  fields: FrameFields = {},
): Buffer {
  const { request = 0, code = 0, item = 0, offset = 0, recordBytes = 0 } = fields;
  const header = Buffer.alloc(HEADER_BYTES);
  header.write("TKVL\u0002", "latin1");
  header[5] = KINDS[kind];
  header.writeUInt16LE(code, 6);
  header.writeUInt32LE(request, 8);
  header.writeUInt32LE(item, 12);
  header.writeBigUInt64LE(BigInt(offset), 16);
  header.writeBigUInt64LE(BigInt(recordBytes), 24);
  header.writeUInt32LE(body.length, 32);
  header.writeUInt32LE(crc32c(header.subarray(0, CHECKED_BYTES)), CHECKED_BYTES);
  return Buffer.concat([header, body]);
}

/** Records of one offer or one fetch, on a session of one lane. */
export class RawLane {
  readonly socket: Socket;
  /** Statuses by item. */
  readonly statuses = new Map<number, number>();
  /** Received bytes by item. */
  readonly records = new Map<number, Buffer>();
  /** Record bytes received. */
  got = 0;
  /** The vault's answer to an offer; null: none yet. */
  wanted: number[] | null = null;
  /** Reason why the session ended. */
  error: string | null = null;
  isOver = false;
  #rest: Buffer = Buffer.alloc(0);

  /** `reads` false: received data is left unread. */
  static async open(vault: { address: string }, reads = true): Promise<RawLane> {
    const token = await laneToken(openChannel(vault));
    const [host = "", port = ""] = vault.address.split(":");
    const socket = connect(Number(port), host);
    closeAfterTest({ close: () => socket.destroy() });
    socket.write(laneFrame("hello", token, { code: 1 }));
    const lane = new RawLane(socket);
    await until(() => lane.#isWelcome || lane.isOver, "a welcome");
    if (!reads) socket.pause();
    return lane;
  }

  #isWelcome = false;

  private constructor(socket: Socket) {
    this.socket = socket;
    socket.on("error", () => {});
    socket.on("close", () => (this.isOver = true));
    socket.on("data", (data: Buffer) => this.#take(data));
  }

  offer(
    records: readonly TestRecord[],
    lengths = records.map(({ record }) => record.length),
    namespace = NAMESPACE,
  ): void {
    const items = records.map(({ key }, at) => {
      const length = Buffer.alloc(8);
      length.writeBigUInt64LE(BigInt(lengths[at] ?? 0));
      return Buffer.concat([key, length]);
    });
    const body = Buffer.concat([namespace, ...items]);
    this.socket.write(laneFrame("offer", body, { request: 1, recordBytes: MADE_NOW }));
  }

  /** Sends `length` bytes of a record from `offset` on as one chunk. */
  chunk(item: number, record: Buffer, offset = 0, length = record.length - offset): void {
    const body = record.subarray(offset, offset + length);
    const fields = { request: 1, item, offset, recordBytes: record.length };
    this.socket.write(laneFrame("chunk", body, fields));
  }

  cancel(): void {
    this.socket.write(laneFrame("cancel", Buffer.alloc(0), { request: 1 }));
  }

  fetch(namespace: Buffer, keys: Buffer): void {
    this.socket.write(laneFrame("fetch", Buffer.concat([namespace, keys]), { request: 1 }));
  }

  async offered(): Promise<number[]> {
    await until(() => this.wanted !== null || this.isOver, "an answer to the offer");
    return this.wanted ?? [];
  }

  async settled(count: number): Promise<Map<number, number>> {
    await until(() => this.statuses.size >= count || this.isOver, "what became of the records");
    return this.statuses;
  }

  #take(data: Buffer): void {
    this.#rest = Buffer.concat([this.#rest, data]);
    for (;;) {
      if (this.#rest.length < HEADER_BYTES) return;
      const end = HEADER_BYTES + this.#rest.readUInt32LE(32);
      if (this.#rest.length < end) return;
      this.#frame(this.#rest.subarray(0, HEADER_BYTES), this.#rest.subarray(HEADER_BYTES, end));
      this.#rest = this.#rest.subarray(end);
    }
  }

  #frame(header: Buffer, body: Buffer): void {
    const [kind, code, item] = [header[5], header.readUInt16LE(6), header.readUInt32LE(12)];
    if (kind === KINDS.welcome) this.#isWelcome = true;
    if (kind === KINDS.status) this.statuses.set(item, code);
    if (kind === WANTED) this.wanted = [...body];
    if (kind === ERROR) this.error = body.toString();
    if (kind !== KINDS.chunk) return;
    const record = this.records.get(item) ?? Buffer.alloc(Number(header.readBigUInt64LE(24)));
    body.copy(record, Number(header.readBigUInt64LE(16)));
    this.got += body.length;
    this.records.set(item, record);
  }
}

/** Returns whole records as a vault holds them, also ones that `makeRecord` did not make. */
export async function rawRecords(
  vault: { address: string },
  namespace: Buffer,
  keys: Buffer,
): Promise<Map<number, Buffer>> {
  const lane = await RawLane.open(vault);
  lane.fetch(namespace, keys);
  const isWhole = (): boolean => {
    const bytes = [...lane.records.values()].reduce((sum, record) => sum + record.length, 0);
    return lane.records.size + lane.statuses.size === keys.length / 36 && lane.got === bytes;
  };
  await until(() => isWhole() || lane.isOver, "all records");
  lane.socket.destroy();
  return lane.records;
}
