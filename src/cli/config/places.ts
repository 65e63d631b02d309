// Owns the address checks of `tierkv config check`: whether this machine has the addresses at which programs are to listen.
import { isIP } from "node:net";
import { splitAddress } from "../../base/hosts.ts";
import { ownInterfaces } from "../../base/interfaces.ts";
import type { Address, Config } from "../../config/config.ts";

/** Zeros stand for all addresses of a machine. */
const ALL = /^[0.:]+$/;

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
  const own = new Set(ownInterfaces().map(({ address }) => address));
  return places.flatMap(([key, address]) => {
    if (address === null || address.text.startsWith("unix:")) return [];
    const { host } = splitAddress(address.text);
    if (isIP(host) === 0 || ALL.test(host) || own.has(host)) return [];
    // Linux accepts all of 127.0.0.0/8.
    if (host.startsWith("127.")) return [];
    return [`${key} = "${address.text}": this machine does not have the address ${host} now`];
  });
}
