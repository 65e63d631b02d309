// Owns hand-made lanes: peers of a real vault that say hello, send requests, and read no answers.
import { connect } from "node:net";
import type { Socket } from "node:net";
import { laneFrame, laneToken, openChannel } from "./raw-calls.ts";
import { closeAfterTest } from "./vaults.ts";

export interface Hosted {
  readonly address: string;
  readonly host: string;
  readonly port: number;
}

/** Opens welcomed sessions of one lane each from `localAddress`; nothing is read afterwards. */
export async function silentLanes(
  vault: Hosted,
  localAddress: string,
  count: number,
): Promise<Socket[]> {
  const channel = openChannel(vault);
  const sockets: Socket[] = [];
  const { host, port } = vault;
  for (let index = 0; index < count; index += 1) {
    const token = await laneToken(channel);
    const socket = connect({ host, port, localAddress });
    closeAfterTest({ close: () => socket.destroy() });
    sockets.push(socket);
    socket.write(laneFrame("hello", token, { code: 1 }));
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
