// Owns the address checks of `tierkv config check`: whether this machine has the addresses at which programs are to listen.
import { BlockList, isIP } from "node:net";
import { splitAddress } from "../../base/hosts.ts";
import { ownInterfaces } from "../../base/interfaces.ts";
import type { Address, Config } from "../../config/config.ts";

/** Zeros stand for all addresses of a machine. */
const ALL = /^[0.:]+$/;

const familyOf = (ip: string): "ipv4" | "ipv6" => (isIP(ip) === 6 ? "ipv6" : "ipv4");

/** Returns a note for each address to listen at that this machine does not have now; names are not looked up. */
export function strangePlaces(config: Config): string[] {
  const { cluster, vault, sidecar, gateway } = config;
  const isVault = cluster.role !== "inference";
  const places: [key: string, address: Address | null][] = [
    ["[vault] listen", isVault ? vault.listen : null],
    ["[vault] metrics_listen", isVault ? vault.metricsListen : null],
    ["[sidecar] page_listen", sidecar.pageListen],
    ["[sidecar] metrics_listen", sidecar.metricsListen],
    ["[gateway] listen", gateway.listen],
    ["[gateway] metrics_listen", gateway.metricsListen],
  ];
  const own = new BlockList();
  for (const { address } of ownInterfaces()) own.addAddress(address, familyOf(address));
  // Linux accepts all of them.
  own.addSubnet("127.0.0.0", 8);
  return places.flatMap(([key, address]) => {
    if (address === null || address.text.startsWith("unix:")) return [];
    // Behind a percent sign stands the interface of a link-local address.
    const [host = ""] = splitAddress(address.text).host.split("%");
    if (isIP(host) === 0 || ALL.test(host) || own.check(host, familyOf(host))) return [];
    const what = `${key} = "${address.text}": this machine does not have the address ${host} now`;
    return [`${what}; correct it, or bring that address up before the start`];
  });
}
