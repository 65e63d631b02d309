// Owns wake-on-LAN for machines whose vault is wanted and silent: one packet to every network of this machine.
import { createSocket } from "node:dgram";
import { splitAddress } from "../../base/hosts.ts";
import type { Sleeper } from "../../base/hosts.ts";
import { ownInterfaces } from "../../base/interfaces.ts";
import { WAKE_EVERY_MS, WAKE_PORT } from "../../base/limits/user.ts";
import type { Logger } from "../../base/log.ts";
import { nowMs } from "../../base/time.ts";

/** Builds AMD's magic packet: six bytes of ones, then the card's address sixteen times. */
function magicPacket(mac: string): Buffer {
  return Buffer.from("ff".repeat(6) + mac.repeat(16), "hex");
}

export class Waker {
  readonly #macs: ReadonlyMap<string, string>;
  readonly #logger: Logger;
  readonly #to: () => readonly string[];
  readonly #port: number;
  readonly #sentMs = new Map<string, number>();

  constructor(
    sleepers: readonly Sleeper[],
    logger: Logger,
    to: () => readonly string[] = broadcasts,
    port: number = WAKE_PORT,
  ) {
    this.#macs = new Map(sleepers.map(({ host, mac }) => [host, mac]));
    this.#logger = logger;
    this.#to = to;
    this.#port = port;
  }

  /** Returns the callback for a client whose vault is wanted and down; undefined: no way to wake it is known. */
  callOf(address: string): (() => void) | undefined {
    if (address.startsWith("unix:")) return undefined;
    const { host } = splitAddress(address);
    const mac = this.#macs.get(host);
    return mac === undefined ? undefined : () => this.#wake(host, mac);
  }

  /** Sends at most every WAKE_EVERY_MS, because a machine takes that long to come up. */
  #wake(host: string, mac: string): void {
    if (nowMs() - (this.#sentMs.get(host) ?? -Infinity) < WAKE_EVERY_MS) return;
    this.#sentMs.set(host, nowMs());
    this.#logger.info(
      { vault: host },
      "vault is wanted and does not answer: sending its machine a wake-up packet",
    );
    const socket = createSocket("udp4");
    const failed = (error: Error): void =>
      this.#logger.warn({ vault: host, reason: error.message }, "the wake-up packet was not sent");
    let open = 0;
    const sent = (error: Error | null): void => {
      if (error !== null) failed(error);
      open -= 1;
      if (open === 0) socket.close();
    };
    socket.on("error", (error) => {
      failed(error);
      socket.close();
    });
    socket.bind(() => {
      socket.setBroadcast(true);
      const to = this.#to();
      open = to.length;
      for (const target of to) socket.send(magicPacket(mac), this.#port, target, sent);
      if (open === 0) socket.close();
    });
  }
}

/** Returns each network's address with all host bits set. */
function broadcasts(): string[] {
  const v4 = ownInterfaces().filter(({ family, internal }) => family === "IPv4" && !internal);
  return [...new Set(v4.map(({ address, netmask }) => broadcastOf(address, netmask)))];
}

function broadcastOf(address: string, netmask: string): string {
  const mask = netmask.split(".").map(Number);
  const bytes = address.split(".").map((byte, at) => Number(byte) | (~(mask[at] ?? 255) & 255));
  return bytes.join(".");
}
