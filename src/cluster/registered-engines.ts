// Owns the registration of engines in etcd: a gateway follows it, and a sidecar registers its host's engines.
import { splitAddress } from "../base/hosts.ts";
import { parseObject } from "../base/json.ts";
import type { Running } from "../base/lifecycle.ts";
import type { Logger } from "../base/log.ts";
import type { Config } from "../config/config.ts";
import { EtcdSource, register } from "../discovery/etcd.ts";
import type { EtcdOptions, Read } from "../discovery/etcd.ts";
import { Discovery } from "../gateway/engines/discovery.ts";
import type { Look, Neighbour } from "../gateway/engines/discovery.ts";
import { etcdOptions } from "./etcd.ts";
import { Neighbours } from "./neighbours.ts";

/** Returns the options of etcd with the engines' prefix. Throws CREDENTIALS. */
function optionsOf(config: Config, logger: Logger): EtcdOptions {
  return { ...etcdOptions(config, logger), prefix: config.etcd.enginesPrefix };
}

/** Reads an engine's entry; missing or malformed event addresses become null. */
const engineAt: Read<Neighbour> = (address, value) => {
  const where = (given: unknown): string | null =>
    typeof given === "string" && /^[\w.:[\]-]{1,300}:\d+$/.test(given) ? given : null;
  // A key written by hand may have an empty value.
  const { events, replays } = parseObject(value) ?? {};
  return { address, events: where(events), replays: where(replays) };
};

export interface RegisteredEngines extends Running {
  /** Returns the latest list; waits for the first answer. */
  look: Look;
}

/** Follows registered engines until closed. The last list holds while etcd is silent or lists none. */
export function followEngines(config: Config, logger: Logger): RegisteredEngines {
  const options = optionsOf(config, logger);
  const { prefix } = options;
  const source = new EtcdSource(options, engineAt);
  let now: readonly Neighbour[] = [];
  const first = new Promise<void>((resolve) => {
    source.follow(
      (list) => {
        now = list;
        resolve();
      },
      () => {
        if (now.length === 0) logger.warn({ prefix }, "no engine is registered in etcd yet");
        resolve();
      },
    );
  });
  return {
    async look() {
      await first;
      return [...now];
    },
    close: () => Promise.resolve(source.close()),
  };
}

/** Registers the engines of this host's sidecar, at `[etcd] engine_host`, until closed. */
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
