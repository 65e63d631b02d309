// Owns the choice of a bundle's records: a session's, or the ones of the blocks up to one, on whichever vaults.
import { HASH_BYTES, isMeasuring, RECORD_CLASSES, toNamespace } from "../../base/block.ts";
import type { RecordClass } from "../../base/block.ts";
import { TierkvError } from "../../base/errors.ts";
import { STORE_TIMEOUT_MS } from "../../base/limits/general.ts";
import { DRAIN_RECORDS_MAX } from "../../base/limits/pool.ts";
import { BUNDLE_LAYER_BYTES, BUNDLE_LAYER_RECORDS } from "../../base/limits/tools.ts";
import type { SessionName, VaultClient } from "../../client/vault/vault-client.ts";
import { collected } from "../../moving/copies.ts";
import { hashOf, learnFrom, pagesOf, UNKNOWN } from "../../moving/rows.ts";
import type { Row } from "../../moving/rows.ts";

/** Connected clients by class; each has answered a hello. */
export type Clients = Readonly<Record<RecordClass, readonly VaultClient[]>>;

export interface Found extends Row {
  /** Vaults that hold it. */
  holders: VaultClient[];
}

export interface Selection {
  namespace: Buffer;
  model: string;
  session: string | null;
  tenant: number;
  /** Sorted by block, so that an import cut short still leaves the beginning of the prompt. */
  rows: Record<RecordClass, Found[]>;
  /** Blocks from the prompt's first on, without a hole. */
  blocks: number;
  /** Number of records left out because a block before them is missing. */
  behind: number;
}

export interface Wanted {
  session: string | null;
  /** Hash of a prefix's last block. */
  block: Buffer | null;
  /** Hexadecimal prefix of its namespace; empty: any. */
  namespace: string;
}

interface Listed {
  namespace: Buffer;
  model: string;
  session: string | null;
  tenant: number;
  rows: Record<RecordClass, Map<string, Found>>;
}

/** Throws USAGE unless exactly one listing matches. */
export async function select(clients: Clients, wanted: Wanted): Promise<Selection> {
  const { block } = wanted;
  const all = block === null ? await sessionsOf(clients, wanted) : await allOf(clients);
  const fit = all.filter(
    ({ namespace, rows }) =>
      namespace.toString("hex").startsWith(wanted.namespace) &&
      [...rows.kv.values(), ...rows.ssm.values()].some(
        (row) => block === null || hashOf(row).equals(block),
      ),
  );
  const [listed] = fit;
  if (listed === undefined) {
    const reason =
      block === null
        ? `no vault holds anything of a session ${String(wanted.session)}; \`tierkv session ls\` has those that are known`
        : "no vault holds that block";
    throw new TierkvError("USAGE", { reason });
  }
  if (fit.length > 1) {
    const each = fit.map(({ namespace, model }) => `${namespace.toString("hex")} (${model})`);
    const reason = `there are ${fit.length} of them: choose one with --namespace: ${each.join(", ")}`;
    throw new TierkvError("USAGE", { reason });
  }
  await learn(listed);
  const selection = ordered(block === null ? listed : upTo(listed, block));
  if (selection.rows.kv.length + selection.rows.ssm.length > 0) return selection;
  const reason = `blocks before it are gone from the vaults, so that nothing could be restored`;
  throw new TierkvError("USAGE", { reason });
}

async function sessionsOf(clients: Clients, { session }: Wanted): Promise<Listed[]> {
  const known = new Map<string, { of: SessionName; listed: Listed }>();
  for (const client of [...clients.kv, ...clients.ssm]) {
    for (const { name, namespace, tenant, model } of await client.sessions(STORE_TIMEOUT_MS)) {
      if (name !== session) continue;
      const key = `${namespace.toString("hex")} ${tenant}`;
      if (known.has(key)) continue;
      const of = { session: name, namespace, tenant };
      known.set(key, { of, listed: blank(namespace, model, of) });
    }
  }
  for (const { of, listed } of known.values()) {
    for (const name of RECORD_CLASSES) {
      for (const client of clients[name]) await addAll(listed.rows[name], client, of);
    }
  }
  return [...known.values()].map(({ listed }) => listed);
}

async function addAll(
  into: Map<string, Found>,
  client: VaultClient,
  of: SessionName,
): Promise<void> {
  for await (const { rows } of pagesOf(client, of)) for (const row of rows) add(into, row, client);
}

/** Returns all records of the vaults, one listing per namespace. */
async function allOf(clients: Clients): Promise<Listed[]> {
  const known = new Map<string, Listed>();
  let count = 0;
  for (const name of RECORD_CLASSES) {
    for (const client of clients[name]) {
      for await (const { namespace, model, rows } of pagesOf(client)) {
        if (isMeasuring(toNamespace(namespace))) continue;
        count += rows.length;
        if (count > DRAIN_RECORDS_MAX) {
          const reason = `these vaults hold more than ${DRAIN_RECORDS_MAX} records: name a session instead of a block`;
          throw new TierkvError("USAGE", { reason });
        }
        const key = namespace.toString("hex");
        const listed = known.get(key) ?? blank(namespace, model);
        known.set(key, listed);
        for (const row of rows) add(listed.rows[name], row, client);
      }
    }
  }
  return [...known.values()];
}

const blank = (namespace: Buffer, model: string, of?: SessionName): Listed => ({
  namespace,
  model,
  session: of?.session ?? null,
  tenant: of?.tenant ?? 0,
  rows: { kv: new Map(), ssm: new Map() },
});

function add(into: Map<string, Found>, row: Row, client: VaultClient): void {
  const key = row.key.toString("latin1");
  const found = into.get(key);
  if (found === undefined) into.set(key, { ...row, holders: [client] });
  else found.holders.push(client);
}

/** Keeps the records whose hash is in the chain up to `block`, in any group: groups of equal block length share hashes. */
function upTo(listed: Listed, block: Buffer): Listed {
  const parents = new Map<string, string>();
  for (const name of RECORD_CLASSES) {
    for (const row of listed.rows[name].values()) {
      if (row.number !== UNKNOWN) parents.set(text(hashOf(row)), text(row.parent));
    }
  }
  const chain = new Set<string>();
  for (let at = text(block); parents.has(at) && !chain.has(at); at = parents.get(at) ?? "") {
    chain.add(at);
  }
  const own = (of: Map<string, Found>): Map<string, Found> =>
    new Map([...of].filter(([, row]) => chain.has(text(hashOf(row)))));
  return { ...listed, rows: { kv: own(listed.rows.kv), ssm: own(listed.rows.ssm) } };
}

const text = (hash: Buffer): string => hash.toString("latin1", 0, HASH_BYTES);

function ordered({ rows, ...listed }: Listed): Selection {
  const [kv, ssm] = [inOrder(rows.kv), inOrder(rows.ssm)];
  if (kv.some(({ number }) => number === UNKNOWN)) {
    const reason = "its records are sealed with keys that [sidecar] record_keys here does not have";
    throw new TierkvError("USAGE", { reason });
  }
  const numbers = new Set(kv.map(({ number }) => number));
  let blocks = 0;
  while (numbers.has(blocks)) blocks += 1;
  const whole = kv.filter(({ number }) => number < blocks);
  return { ...listed, rows: { kv: whole, ssm }, blocks, behind: kv.length - whole.length };
}

const inOrder = (rows: Map<string, Found>): Found[] =>
  [...rows.values()].toSorted((a, b) => a.number - b.number || a.key.compare(b.key));

/** Fetches the sealed records, because their position is readable only after opening. */
async function learn({ namespace, rows }: Listed): Promise<void> {
  const all = [...rows.kv.values(), ...rows.ssm.values()];
  for (const batch of layersOf(all.filter(({ number }) => number === UNKNOWN))) {
    for (const [client, of] of byHolder(batch, 0)) {
      await collected(client, namespace, of, (records) => {
        for (const [at, id] of records) learnFrom(of[at], id);
      });
    }
  }
}

/** Groups rows by their holder number `place`; rows with fewer holders are left out. */
export function byHolder(rows: readonly Found[], place: number): Map<VaultClient, Found[]> {
  const by = new Map<VaultClient, Found[]>();
  for (const row of rows) {
    const holder = row.holders[place];
    if (holder !== undefined) by.set(holder, [...(by.get(holder) ?? []), row]);
  }
  return by;
}

/** Splits rows into layers within the limits of count and bytes. */
export function layersOf<R extends Row>(rows: readonly R[]): R[][] {
  const layers: R[][] = [];
  let bytes = 0;
  for (const row of rows) {
    const last = layers.at(-1);
    bytes += row.bytes;
    if (last !== undefined && last.length < BUNDLE_LAYER_RECORDS && bytes <= BUNDLE_LAYER_BYTES) {
      last.push(row);
    } else {
      layers.push([row]);
      ({ bytes } = row);
    }
  }
  return layers;
}
