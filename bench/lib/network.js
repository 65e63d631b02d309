// Owns a network of its own for a bench: a namespace behind a pair of virtual interfaces, whose pace can be set by tc.
import { execFileSync } from "node:child_process";

/** From the block that is set aside for benchmarks (RFC 2544). */
const NEAR = "198.18.77.1";
const FAR = "198.18.77.2";

const ip = (...args) => execFileSync("ip", args, { stdio: ["ignore", "ignore", "pipe"] });

/** Needs root. Throws what `ip` says where it is not allowed, or where another run has the addresses. */
export class Network {
  netns = `tierkv-${process.pid}`;
  here = `tkb${process.pid}a`;
  there = `tkb${process.pid}b`;
  host = FAR;

  constructor() {
    const { netns, here, there } = this;
    ip("netns", "add", netns);
    this.onExit = () => this.#remove();
    process.on("exit", this.onExit);
    ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", netns);
    ip("addr", "add", `${NEAR}/30`, "dev", here);
    ip("link", "set", here, "up");
    ip("-n", netns, "addr", "add", `${FAR}/30`, "dev", there);
    ip("-n", netns, "link", "set", there, "up");
    ip("-n", netns, "link", "set", "lo", "up");
  }

  close() {
    process.off("exit", this.onExit);
    this.#remove();
  }

  /** The interfaces go with the namespace. */
  #remove() {
    ip("netns", "del", this.netns);
  }
}
