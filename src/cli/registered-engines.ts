// Owns engines that are registered in etcd: a gateway follows them, and a sidecar registers those of its host.
import type { Config } from "../config/config.ts";
import { EtcdSource, register } from "../discovery/etcd.ts";
import type { EtcdOptions, Read } from "../discovery/etcd.ts";
import { Discovery } from "../gateway/engines/discovery.ts";
import type { Look, Neighbour } from "../gateway/engines/discovery.ts";
import { splitAddress } from "../hosts.ts";
import { parseObject } from "../json.ts";
import type { Running } from "../lifecycle.ts";
import type { Logger } from "../log.ts";
import { etcdOptions } from "./etcd.ts";
import { Neighbours } from "./neighbours.ts";

/** Throws CREDENTIALS. */
function optionsOf(config: Config, logger: Logger): EtcdOptions {
  return { ...etcdOptions(config, logger), prefix: config.etcd.enginesPrefix };
}

/** An engine whose events are not said, or not as they should be, is one without. */
const engineAt: Read<Neighbour> = (address, value) => {
  const where = (given: unknown): string | null =>
    typeof given === "string" && /^[\w.:[\]-]{1,300}:\d+$/.test(given) ? given : null;
  // Whoever writes keys by hand may leave it empty.
  const { events, replays } = parseObject(value) ?? {};
  return { address, events: where(events), replays: where(replays) };
};

export interface RegisteredEngines extends Running {
  /** Waits for the first list. */
  look: Look;
}

/** Those that are registered now, until closed; while etcd is silent, or lists none, the last list holds. */
export function followEngines(config: Config, logger: Logger): RegisteredEngines {
  const source = new EtcdSource(optionsOf(config, logger), engineAt);
  let now: readonly Neighbour[] = [];
  const first = new Promise<void>((resolve) => {
    source.follow((list) => {
      now = list;
      resolve();
    });
  });
  return {
    async look() {
      await first;
      return [...now];
    },
    close: () => Promise.resolve(source.close()),
  };
}

/** Those of this host that its sidecar knows, at `[etcd] engine_host`, until closed. */
export async function registerEngines(config: Config, logger: Logger): Promise<Running> {
  const { engineHost } = config.etcd;
  const neighbours = new Neighbours(config.sidecar.socket, logger);
  const options = optionsOf(config, logger);
  const host = engineHost?.includes(":") === true ? `[${engineHost}]` : engineHost;
  const fromAfar = (address: string | null): string | null =>
    address === null ? null : `${host}:${splitAddress(address).port}`;
  const registered = new Map<string, Running>();
  const put = ({ address, events, replays }: Neighbour): void => {
    const value = JSON.stringify({ events: fromAfar(events), replays: fromAfar(replays) });
    const before = registered.get(address);
    registered.set(address, register(options, fromAfar(address) ?? "", value));
    void before?.close();
  };
  const discovery = new Discovery({
    of: "the sidecar of this host",
    logger,
    look: () => neighbours.look(),
    onFound(one) {
      put(one);
      return true;
    },
    onMoved: put,
    onGone({ address }) {
      void registered.get(address)?.close();
      registered.delete(address);
    },
  });
  await discovery.start();
  return {
    async close() {
      await discovery.close();
      await Promise.all([...registered.values()].map((one) => one.close()));
    },
  };
}
