// Owns gRPC targets that are reached from one address of this machine, so that calls take the cable of that address.
import { isIP } from "node:net";
import { experimental } from "@grpc/grpc-js";
import { splitAddress } from "../hosts.ts";

const SCHEME = "tierkv-from";

/** A target for a channel to `address`, whose sockets are bound to `local`. */
export function targetFrom(address: string, local: string): string {
  experimental.registerResolver(SCHEME, FromResolver);
  return `${SCHEME}://${local}/${address}`;
}

/** Resolves no name: the socket does, in the family of the address that it is bound to. */
class FromResolver implements experimental.Resolver {
  readonly #answer: () => void;

  constructor(
    { authority: local = "", path }: experimental.GrpcUri,
    listener: experimental.ResolverListener,
  ) {
    // gRPC hands these to `net.connect` as they are.
    const socket = { ...splitAddress(path), localAddress: local, family: isIP(local) };
    const found = experimental.statusOrFromValue([{ addresses: [socket] }]);
    this.#answer = () => void listener(found, {}, null, "");
  }

  updateResolution(): void {
    process.nextTick(this.#answer);
  }

  destroy(): void {
    // Holds nothing.
  }

  static getDefaultAuthority({ path }: experimental.GrpcUri): string {
    return path;
  }
}
