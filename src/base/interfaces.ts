// Owns the list of this machine's addresses, on all network interfaces.
import { networkInterfaces } from "node:os";
import type { NetworkInterfaceInfo } from "node:os";

export function ownInterfaces(): NetworkInterfaceInfo[] {
  return Object.values(networkInterfaces()).flatMap((all) => all ?? []);
}
