// Owns how many connections one address may hold, counted before anything is read from them.
import type { Socket } from "node:net";
import { VAULT_PEER_CONNECTIONS_MAX } from "../limits.ts";

/** Connections by address; those of a Unix socket are of this machine, and only counted by the listener. */
export class Shares {
  readonly #hosts = new Map<string, number>();

  /** Counts a connection until it closes; false: its address has its share already. */
  admit(socket: Socket): boolean {
    const { remoteAddress: host } = socket;
    if (host === undefined) return true;
    const others = this.#hosts.get(host) ?? 0;
    if (others >= VAULT_PEER_CONNECTIONS_MAX) return false;
    this.#hosts.set(host, others + 1);
    socket.once("close", () => {
      const left = (this.#hosts.get(host) ?? 1) - 1;
      if (left > 0) this.#hosts.set(host, left);
      else this.#hosts.delete(host);
    });
    return true;
  }
}
