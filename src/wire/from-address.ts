// Owns gRPC targets bound to one local address, so that calls take the cable of that address.
import { isIP } from "node:net";
import { experimental } from "@grpc/grpc-js";
import { splitAddress } from "../base/hosts.ts";

const SCHEME = "tierkv-from";

/** Returns a target for a channel to `address` whose sockets are bound to `local`. */
export function targetFrom(address: string, local: string): string {
  experimental.registerResolver(SCHEME, FromResolver);
  return `${SCHEME}://${local}/${address}`;
}

/** Resolves no name itself: the socket does, in the family of its local address. */
class FromResolver implements experimental.Resolver {
  readonly #answer: () => void;
  #isAnswered = false;

  constructor(
    { authority: local = "", path }: experimental.GrpcUri,
    listener: experimental.ResolverListener,
  ) {
    // gRPC passes these options to `net.connect` unchanged.
    const socket = { ...splitAddress(path), localAddress: local, family: isIP(local) };
    const found = experimental.statusOrFromValue([{ addresses: [socket] }]);
    this.#answer = () => void listener(found, {}, null, "");
  }

  /** Answers once, because an answer after each failure would end the pause before the next attempt. */
  updateResolution(): void {
    if (this.#isAnswered) return;
    this.#isAnswered = true;
    process.nextTick(this.#answer);
  }

  destroy(): void {
    this.#isAnswered = false;
  }

  static getDefaultAuthority({ path }: experimental.GrpcUri): string {
    return path;
  }
}
