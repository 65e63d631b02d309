// Owns which addresses this machine has, on all of its network interfaces.
import { networkInterfaces } from "node:os";
import type { NetworkInterfaceInfo } from "node:os";

export function ownInterfaces(): NetworkInterfaceInfo[] {
  return Object.values(networkInterfaces()).flatMap((all) => all ?? []);
}
