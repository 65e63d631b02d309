// Owns which addresses of a name stand for its machines: those of one IP family, so that a machine with both is one member.
import { networkInterfaces } from "node:os";

/** Addresses of a name, by family. */
export interface BothFamilies {
  v4: readonly string[];
  v6: readonly string[];
}

/** Whether this machine reaches others by IPv6 and not by IPv4. */
export function isIpv6Alone(all: Readonly<ReturnType<typeof networkInterfaces>>): boolean {
  const outer = Object.values(all)
    .flatMap((each) => each ?? [])
    .filter(({ internal, address }) => !internal && !/^fe[89ab]/i.test(address));
  return outer.length > 0 && outer.every(({ family }) => family === "IPv6");
}

/**
 * Returns the addresses of one family. That is IPv4 where the name has it, except on a machine with IPv6 alone; never by
 * number, because a list that changes its family changes every member.
 */
export function ofOneFamily(
  { v4, v6 }: BothFamilies,
  isV6Alone: boolean = isIpv6Alone(networkInterfaces()),
): string[] {
  if (v4.length === 0 || v6.length === 0) return [...v4, ...v6];
  return [...(isV6Alone ? v6 : v4)];
}
