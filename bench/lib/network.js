// Owns a bench's own network: a namespace behind a pair of virtual interfaces, shaped by tc.
import { execFileSync } from "node:child_process";

/** From the range reserved for benchmarks (RFC 2544). */
const BLOCK = "198.18.77";

const run = (...argv) =>
  execFileSync(argv[0], argv.slice(1), { stdio: ["ignore", "ignore", "pipe"] });
const ip = (...args) => run("ip", ...args);

/** Needs root. Throws the error of `ip` where that is not allowed, or where another run has the addresses. */
export class Network {
  /** `at`: index among several networks, 0 to 63. */
  constructor(at = 0) {
    const name = `${process.pid}${at === 0 ? "" : `-${at}`}`;
    const [netns, here, there] = [`tierkv-${name}`, `tkb${name}a`, `tkb${name}b`];
    const [near, host] = [1, 2].map((end) => `${BLOCK}.${4 * at + end}`);
    Object.assign(this, { netns, here, there, host });
    ip("netns", "add", netns);
    this.onExit = () => this.#remove();
    process.on("exit", this.onExit);
    ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", netns);
    ip("addr", "add", `${near}/30`, "dev", here);
    ip("link", "set", here, "up");
    ip("-n", netns, "addr", "add", `${host}/30`, "dev", there);
    ip("-n", netns, "link", "set", there, "up");
    ip("-n", netns, "link", "set", "lo", "up");
  }

  /** Shapes both directions. */
  pace(mbit) {
    // The burst holds 2 ms of traffic, because with less the timers would limit and not the rate.
    const shape = ["tbf", "rate", `${mbit}mbit`, "burst", `${mbit * 250}`, "latency", "50ms"];
    run("tc", "qdisc", "replace", "dev", this.here, "root", ...shape);
    run("tc", "-n", this.netns, "qdisc", "replace", "dev", this.there, "root", ...shape);
  }

  close() {
    process.off("exit", this.onExit);
    this.#remove();
  }

  /** Deletes the namespace, and the interfaces with it. */
  #remove() {
    ip("netns", "del", this.netns);
  }
}
