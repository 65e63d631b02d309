// Owns the table of sources: one row for each scheme of an address in `kv_cold` and `ssm_cold`, and how such a place is opened.
import type { RecordClass } from "../base/block.ts";
import type { Logger } from "../base/log.ts";
import type { Config } from "../config/config.ts";
import type { BlockStore } from "./source.ts";

export interface SourceOptions {
  /** As configured, with its scheme. */
  address: string;
  /** The class of records to keep there. */
  name: RecordClass;
  config: Config;
  logger: Logger;
  /** Size of a place that is made here if it is missing. `mustFit`: one of another size is refused. */
  size: { maxBytes: number; mustFit: boolean };
  /** Makes the client of a vault, where the address has no scheme of this table. */
  vault(): BlockStore;
}

export interface SourceKind {
  /** Beginning of its addresses, with the colon. */
  readonly scheme: string;
  /** Opens the place. Rejects with a coded error that names the configuration's key. */
  open(options: SourceOptions): Promise<BlockStore>;
}

/** Opens a store that others run. Throws BAD_ARGUMENT, STORE_FAILED or CREDENTIALS for an address or credentials that cannot be used. */
async function openStore({ address, name, config, logger }: SourceOptions): Promise<BlockStore> {
  const { ColdStore } = await import("./cold/cold-store.ts");
  const { storeSettings } = await import("./cold/settings.ts");
  return new ColdStore({ address, name, settings: storeSettings(config, name), logger });
}

/** Each row loads its folder at the first use. */
const SOURCES: readonly SourceKind[] = [
  {
    scheme: "shm:",
    async open({ address, name, config, logger, size }) {
      const { SharedVault } = await import("./region/shared-vault.ts");
      const { coherence, host, group } = config.cluster;
      return await SharedVault.open({ address, name, coherence, host, group, logger, ...size });
    },
  },
  { scheme: "valkey:", open: openStore },
  { scheme: "valkeys:", open: openStore },
  { scheme: "s3:", open: openStore },
];

/** Opens the place that an address names. Rejects with the errors of its kind. */
export async function openSource(options: SourceOptions): Promise<BlockStore> {
  const kind = SOURCES.find(({ scheme }) => options.address.startsWith(scheme));
  return kind === undefined ? options.vault() : await kind.open(options);
}
