// Owns the file checks of `tierkv config check`: reads each named file with the code that a start uses, and makes none.
import type { RecordClass } from "../../base/block.ts";
import { toTierkvError } from "../../base/errors.ts";
import type { TierkvError } from "../../base/errors.ts";
import { sharedPath } from "../../base/hosts.ts";
import { silent } from "../../base/log.ts";
import { readPrivate, readPublic } from "../../base/private-file.ts";
import type { Address, Config, GatewayConfig, Role, VaultConfig } from "../../config/config.ts";

/** A file that cannot be used, and the key that names it. */
export interface FileProblem {
  key: string;
  error: TierkvError;
}

interface Named {
  key: string;
  path: string | null;
  read(path: string, key: string): unknown;
}

/** Returns `ofFolders` and the files' problems. A part whose folder has a problem is not read. */
export async function fileProblems(
  config: Config,
  ofFolders: readonly FileProblem[],
): Promise<FileProblem[]> {
  const problems = [...ofFolders];
  for (const [files, readers] of partsOf(config)) {
    for (const { key, path, read } of files) {
      if (path !== null) await caught(() => read(path, key), key, problems);
    }
    const [first] = files;
    // Contents are checked only once all files of the part can be read.
    const isRead = files.every(({ key }) => problems.every((found) => found.key !== key));
    for (const reader of isRead && first !== undefined ? readers : []) {
      await caught(reader, (error) => keyOf(files, error) ?? first?.key ?? "", problems);
    }
  }
  return problems;
}

async function caught(
  read: () => unknown,
  key: string | ((error: TierkvError) => string),
  problems: FileProblem[],
): Promise<void> {
  try {
    await read();
  } catch (caughtError) {
    const error = toTierkvError(caughtError);
    // A missing native core is no problem of a file; each start and `tierkv doctor` report it.
    if (error.code === "CORE_MISSING") return;
    problems.push({ key: typeof key === "string" ? key : key(error), error });
  }
}

/** Finds the key of an error's path, which may end with a line number. */
function keyOf(files: readonly Named[], { details }: TierkvError): string | null {
  const { path: said = "" } = details as { path?: string };
  const path = said.replace(/:\d+$/, "");
  return files.find((named) => named.path === path)?.key ?? null;
}

type Part = readonly [files: readonly Named[], readers: readonly (() => unknown)[]];

const own = (key: string): Named => ({ key, path: null, read: () => {} });
const open = (key: string, path: string | null): Named => ({ key, path, read: readPublic });
const secret = (key: string, path: string | null): Named => ({ key, path, read: readPrivate });

/** Files of a store that others run. */
function partOfStores(config: Config): Part {
  const { cluster } = config;
  return [
    [
      secret("[cluster] store_password", cluster.storePassword),
      open("[cluster] store_tls_ca", cluster.storeTlsCa),
      open("[cluster] store_tls_cert", cluster.storeTlsCert),
      secret("[cluster] store_tls_key", cluster.storeTlsKey),
    ],
    [async () => (await import("../../client/cold/settings.ts")).storeSettings(config, "kv")],
  ];
}

/** Memory that the sidecars of this machine share; only a machine with engines maps it. */
function partOfRegions(name: RecordClass, role: Role, addresses: readonly Address[]): Part {
  const shared = role === "inference" ? addresses.filter(({ text }) => sharedPath(text)) : [];
  const readers = shared.map(({ text }) => async (): Promise<void> => {
    (await import("../../client/region/region.ts")).checkPlace(name, text);
  });
  return [[own(`[cluster] ${name}_cold`)], readers];
}

function partOfGroup({ cluster: { group } }: Config): Part {
  const read = async (name: string): Promise<void> =>
    (await import("../../client/region/region.ts")).checkGroup(name);
  return [[{ key: "[cluster] group", path: group, read }], []];
}

function partOfVault(vault: VaultConfig): Part {
  return [
    [
      own("[vault] state_dir"),
      open("[vault] tls_cert", vault.tlsCert),
      secret("[vault] tls_key", vault.tlsKey),
      open("[vault] tls_client_ca", vault.tlsClientCa),
      secret("[vault] tokens", vault.tokens),
      secret("[vault] pool_key", vault.poolKey),
    ],
    [
      async () => {
        const { isClosed } = await import("../../cluster/vault-access.ts");
        const { checkSecurity } = await import("../../vault/access/identity.ts");
        if (isClosed(vault)) checkSecurity(vault, silent);
      },
      async () => {
        const { PoolKey } = await import("../../discovery/entry.ts");
        if (vault.poolKey !== null) PoolKey.read(vault.poolKey);
      },
    ],
  ];
}

function partOfSocket(key: "[sidecar] socket" | "[gateway] socket", path: string): Part {
  const read = async (): Promise<void> =>
    (await import("../../base/socket-file.ts")).checkSocketFolder({ path, key });
  return [[own(key)], [read]];
}

/** Files and readers of each program; the first key names the folder of its own files, if it has one. */
function partsOf(config: Config): readonly Part[] {
  const { cluster, vault, sidecar, gateway, etcd } = config;
  return [
    [
      [
        own("[cluster] credentials"),
        open("[cluster] tls_ca", cluster.tlsCa),
        open("[cluster] tls_cert", cluster.tlsCert),
        secret("[cluster] tls_key", cluster.tlsKey),
        secret("[cluster] token", cluster.token),
      ],
      [async () => (await import("../../cluster/credentials.ts")).checkCredentials(config)],
    ],
    partOfStores(config),
    partOfRegions("kv", cluster.role, cluster.kvCold),
    partOfRegions("ssm", cluster.role, cluster.ssmCold),
    partOfGroup(config),
    partOfVault(vault),
    partOfSocket("[sidecar] socket", sidecar.socket),
    [
      [secret("[sidecar] record_keys", sidecar.recordKeys)],
      [async () => await (await import("../../config/conditions.ts")).loadRecordKeys(config)],
    ],
    [
      [
        open("[sidecar] page_tls_cert", sidecar.pageTlsCert),
        secret("[sidecar] page_tls_key", sidecar.pageTlsKey),
        secret("[sidecar] page_token", sidecar.pageToken),
      ],
      [async () => (await import("../../page/process/serve.ts")).pageAccess(config)],
    ],
    [
      [
        secret("[gateway] keys", gateway.keys),
        secret("[gateway] engine_key", gateway.engineKey),
        open("[gateway] tls_cert", gateway.tlsCert),
        open("[gateway] engine_ca", gateway.engineCa),
        secret("[gateway] tls_key", gateway.tlsKey),
      ],
      [async () => (await import("../../gateway/gateway.ts")).readAccess(gateway)],
    ],
    partOfSocket("[gateway] socket", gateway.socket),
    [[own("[gateway] tokenizers")], [() => openTokenizers(gateway)]],
    [
      [
        open("[etcd] tls_ca", etcd.tlsCa),
        open("[etcd] tls_cert", etcd.tlsCert),
        secret("[etcd] tls_key", etcd.tlsKey),
        secret("[etcd] password", etcd.password),
      ],
      [async () => (await import("../../cluster/etcd.ts")).etcdOptions(config, silent)],
    ],
  ];
}

async function openTokenizers({ tokenizers }: GatewayConfig): Promise<void> {
  const { OwnTokenizers } = await import("../../gateway/tokens/own.ts");
  const opened = new OwnTokenizers(tokenizers, silent);
  try {
    await opened.start();
  } finally {
    await opened.close();
  }
}
