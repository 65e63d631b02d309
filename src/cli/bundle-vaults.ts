// Owns whom `tierkv bundle` asks: the vaults of this machine, class by class, and its sidecar, for a request's block and for names of engines.
import type { RecordClass } from "../block.ts";
import type { Layout } from "../bundle/layout.ts";
import type { BundleConfig } from "../bundle/manifest.ts";
import type { VaultClient } from "../client/vault-client.ts";
import type { Config } from "../config/config.ts";
import { TierkvError } from "../errors.ts";
import { sharedPath } from "../hosts.ts";
import { HELLO_TIMEOUT_MS, STATUS_TIMEOUT_MS } from "../limits.ts";
import type { SidecarStatus } from "../sidecar/status.ts";
import type { Account } from "../sidecar/trace/decisions.ts";
import { openPool, redundancyOf } from "../sidecar/vaults/pools.ts";
import type { Pool } from "../sidecar/vaults/pools.ts";
import type { Clients } from "./bundle-selection.ts";
import { SidecarLink } from "./sidecar-link.ts";
import { allTargets } from "./sources.ts";
import { clientOf, placesOf } from "./vault-link.ts";

export interface BundleVaults {
  clients: Clients;
  pools: Readonly<Record<RecordClass, Pool>>;
  close(): void;
}

/** All that this machine has, after a hello; memory of its own keeps no sessions, and is left out. */
export async function openVaults(config: Config): Promise<BundleVaults> {
  const targets = (await allTargets(config)).filter(({ address }) => sharedPath(address) === null);
  const of = (name: RecordClass): VaultClient[] =>
    [...placesOf(targets, name).values()].map((target) => clientOf(config, target, name));
  const clients = { kv: of("kv"), ssm: of("ssm") };
  const all = [...clients.kv, ...clients.ssm];
  const close = (): void => {
    for (const client of all) client.close();
  };
  try {
    await Promise.all(all.map((client) => client.hello(HELLO_TIMEOUT_MS)));
  } catch (error) {
    close();
    throw error;
  }
  const options = redundancyOf(config.cluster.redundancy);
  const pools = {
    kv: openPool("kv", clients.kv, options),
    ssm: openPool("ssm", clients.ssm, options),
  };
  return { clients, pools, close };
}

/** Throws USAGE when the sidecar remembers none of that name. */
export async function explainOne({ sidecar }: Config, request: string): Promise<Account> {
  return await asked(sidecar.socket, async (link) => {
    const [account] = (await link.explain(request, 1, STATUS_TIMEOUT_MS)) as unknown as Account[];
    if (account !== undefined) return account;
    const reason = `the sidecar remembers no request "${request}"`;
    throw new TierkvError("USAGE", { reason });
  });
}

/** Throws BUNDLE_REFUSED for one of another namespace than the engines here have, or the person names. */
export async function checkNamespace(
  { sidecar }: Config,
  { namespace, model, seal }: BundleConfig,
  layout: Layout,
  given: string | null,
): Promise<void> {
  const own = await (given === null
    ? enginesOf(sidecar.socket)
    : [{ model: "--namespace", namespace: given }]);
  if (own.some((engine) => engine.namespace !== "" && namespace.startsWith(engine.namespace)))
    return;
  const here = own.map((engine) => `${engine.model} has ${engine.namespace}`).join(", ");
  const why =
    seal === "records"
      ? "another model, other settings, or other record_keys"
      : "another model, or other settings";
  throw layout.refused(
    here === ""
      ? `no engine here has a name yet to compare with ${namespace.slice(0, 16)} (${model}): an engine has one from its first request on; or give --namespace, as the export printed it`
      : `it is of namespace ${namespace.slice(0, 16)} (${model}), and here ${here}: ${why}`,
  );
}

async function enginesOf(socket: string): Promise<{ model: string; namespace: string }[]> {
  return await asked(socket, async (link) => {
    const { engines } = (await link.status(STATUS_TIMEOUT_MS)) as unknown as SidecarStatus;
    return engines.flatMap(({ model, namespace }) =>
      namespace === null ? [] : [{ model, namespace }],
    );
  });
}

async function asked<T>(socket: string, work: (link: SidecarLink) => Promise<T>): Promise<T> {
  const link = new SidecarLink(socket);
  try {
    await link.hello(STATUS_TIMEOUT_MS);
    return await work(link);
  } finally {
    link.close();
  }
}
