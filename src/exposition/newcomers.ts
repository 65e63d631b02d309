// Owns who keeps a connection to a crowded server: a newcomer always gets in, and the oldest of the largest crowd leaves.
import type { Server, Socket } from "node:net";

/** Holds `most` connections of `server`, and `each` from one address; above that the oldest of that address is ended. */
export function letNewcomersIn(server: Server, most: number, each: number): void {
  const crowds = new Map<string, Set<Socket>>();
  let count = 0;
  const leave = (address: string, socket: Socket): void => {
    const crowd = crowds.get(address);
    if (crowd?.delete(socket) !== true) return;
    count -= 1;
    if (crowd.size === 0) crowds.delete(address);
  };
  const largest = (): [string, Set<Socket>] | undefined =>
    [...crowds].toSorted(([, one], [, other]) => other.size - one.size)[0];
  server.on("connection", (socket: Socket) => {
    const address = socket.remoteAddress ?? "";
    const crowd = crowds.get(address) ?? new Set();
    crowds.set(address, crowd.add(socket));
    count += 1;
    socket.once("close", () => leave(address, socket));
    const full = crowd.size > each ? ([address, crowd] as const) : count > most ? largest() : null;
    if (!full) return;
    const [of, sockets] = full;
    const [oldest] = sockets;
    if (oldest === undefined) return;
    leave(of, oldest);
    oldest.destroy();
  });
}
