// Owns lanes by hand: peers of a real vault that say hello, ask, and read nothing of what comes.
import { connect } from "node:net";
import type { Socket } from "node:net";
import { PROTOCOL_MAX, PROTOCOL_MIN } from "../../src/limits.ts";
import { vaultService } from "../../src/wire/service.ts";
import { crc32c } from "./native.ts";
import { openChannel } from "./raw-calls.ts";
import { closeAfterTest, SOON_MS } from "./vaults.ts";

const HEADER_BYTES = 40;
const CHECKED_BYTES = 36;
const KINDS = { hello: 1, fetch: 5 } as const;

/** One frame; `code` of a hello: how many lanes there will be. */
export function laneFrame(
  kind: keyof typeof KINDS,
  request: number,
  body: Buffer,
  code = 0,
): Buffer {
  const header = Buffer.alloc(HEADER_BYTES);
  header.write("TKVL\u0001", "latin1");
  header[5] = KINDS[kind];
  header.writeUInt16LE(code, 6);
  header.writeUInt32LE(request, 8);
  header.writeUInt32LE(body.length, 32);
  header.writeUInt32LE(crc32c(header.subarray(0, CHECKED_BYTES)), CHECKED_BYTES);
  return Buffer.concat([header, body]);
}

export interface Hosted {
  readonly address: string;
  readonly host: string;
  readonly port: number;
}

/** Sessions of one lane each, from `localAddress`, welcomed; from then on nothing is read. */
export async function silentLanes(
  vault: Hosted,
  localAddress: string,
  count: number,
): Promise<Socket[]> {
  const channel = openChannel(vault);
  const request = {
    protocolMin: PROTOCOL_MIN,
    protocolMax: PROTOCOL_MAX,
    clientVersion: "t",
    clientName: "t",
    flushed: 0,
  };
  const signal = new AbortController().signal;
  const sockets: Socket[] = [];
  const { host, port } = vault;
  for (let index = 0; index < count; index += 1) {
    const { laneToken } = await channel.unary(vaultService.Hello, request, {
      timeoutMs: SOON_MS,
      signal,
    });
    const socket = connect({ host, port, localAddress });
    closeAfterTest({ close: () => socket.destroy() });
    sockets.push(socket);
    socket.write(laneFrame("hello", 0, laneToken, 1));
    await new Promise<void>((resolve, reject) => {
      socket.on("error", reject).on("close", () => reject(new Error("turned away")));
      socket.once("data", () => {
        socket.pause();
        socket.on("error", () => {});
        resolve();
      });
    });
  }
  return sockets;
}
