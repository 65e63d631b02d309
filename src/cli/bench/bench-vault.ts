// Owns the measurements of `tierkv bench` at one vault: plain link, look-ups, saves, restores, and a prompt's predicted cost.
import { ItemStatus, measuringNamespace } from "../../base/block.ts";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import type { ErrorCode } from "../../base/errors.ts";
import { storeKind } from "../../base/hosts.ts";
import {
  BENCH_BUCKET_SAMPLES,
  BENCH_CALL_MS,
  BENCH_LOOKUP_KEYS,
  BENCH_PROBE_CHUNKS,
  BENCH_PROBE_CHUNKS_MAX,
  BENCH_ROUND_MS,
  BENCH_SAMPLES,
  BENCH_STORE_TTL_S,
  BENCH_VAULT_SHARE,
  CALL_TIMEOUT_MS,
  FETCH_WINDOW_BYTES,
  FETCHES_IN_FLIGHT_MAX,
  PROBE_CHUNK_BYTES,
  SAVE_BATCH_BYTES,
  STORES_IN_FLIGHT_MAX,
} from "../../base/limits/general.ts";
import { silent } from "../../base/log.ts";
import { nowMs, randomToken } from "../../base/time.ts";
import type { Tier } from "../../client/source.ts";
import { isRemote } from "../../client/vault.ts";
import type { Vault } from "../../client/vault.ts";
import type { VaultTarget } from "../../cluster/targets.ts";
import { linkTo } from "../../cluster/vault-link.ts";
import type { Config } from "../../config/config.ts";
import { chooseCodecs } from "../../sidecar/save/codecs.ts";
import type { CodecName } from "../../sidecar/save/codecs.ts";
import { BENCH_BLOCK_TOKENS, BENCH_PAGE_BYTES, BenchSet } from "./bench-set.ts";
import { refusalBy } from "./failed.ts";

export interface Spread {
  /** Median of the rounds. */
  median: number;
  /** Smallest value. */
  min: number;
  /** Largest value. */
  max: number;
}

/** Rate of records in one direction, in bytes per second. */
export interface RecordRate {
  /** Bytes of records. */
  wire: Spread;
  /** Record rate over the plain-byte rate of the same round; null: nothing travels. */
  ofPlain: Spread | null;
  /** Bytes of the engine's pages. */
  pages: Spread;
}

export interface PromptCost {
  /** Length of the predicted prompt (`--tokens`). */
  tokens: number;
  /** KV bytes of a token (`--token-bytes`). */
  tokenBytes: number;
  /** Record bytes of the prompt. */
  wireBytes: number;
  /** Milliseconds to restore it. */
  ms: number;
}

/** Figures of one vault; the fields after `error` are null where the measurement did not get that far. */
export interface VaultBench {
  /** Role of the vault. */
  target: string;
  /** Address as configured or discovered. */
  address: string;
  /** Why the measurement ended early; null: it is complete. */
  error: string | null;
  /** Code of that error, as in errors.md; null: there is none, or the vault was not asked. */
  errorCode: ErrorCode | null;
  /** `vault`, or `shared` for memory that sidecars share. */
  tier: Tier;
  /** Lanes used; 0 for shared memory. */
  lanes: number;
  /** Codec of the test records. */
  codec: CodecName;
  /** Milliseconds of an empty gRPC call. */
  callMs: Spread | null;
  /** Milliseconds of a look-up of `lookupKeys` keys. */
  lookupMs: Spread | null;
  /** Keys of one look-up. */
  lookupKeys: number;
  /** Bytes per second of plain data over the same lanes. */
  plain: { from: Spread; to: Spread } | null;
  /** Page bytes of one round. */
  setBytes: number | null;
  /** Rounds that were asked for. */
  rounds: number;
  /** Rate of restores. */
  restore: RecordRate | null;
  /** Rate of saves. */
  save: RecordRate | null;
  /** Predicted time of a prompt; null: recurrent states alone are kept there, or too little was measured. */
  prompt: PromptCost | null;
}

export interface BenchOptions {
  /** Page bytes of one round, at most. */
  bytes: number;
  rounds: number;
  tokens: number;
  /** KV bytes of one token in the engine, over all layers. */
  tokenBytes: number;
  /** Called after each round, with the number done. */
  onRound?: (done: number) => void;
}

/** Lets a store that others run expire the records, because no client deletes there. */
function shortlyKept(config: Config): Config {
  const { cluster } = config;
  const storeTtlS = Math.min(cluster.storeTtlS ?? BENCH_STORE_TTL_S, BENCH_STORE_TTL_S);
  return { ...config, cluster: { ...cluster, storeTtlS } };
}

export async function benchVault(
  target: VaultTarget,
  config: Config,
  options: BenchOptions,
): Promise<VaultBench> {
  const { address, classes, name } = target;
  const { lanes } = config.sidecar;
  const { client } = await linkTo(shortlyKept(config), target, silent, lanes);
  const { byClass, fidelity, kvName } = chooseCodecs(config);
  const codec: CodecName = classes[0] === "kv" ? kvName : "raw";
  const result: VaultBench = { ...blank(name, address, codec), rounds: options.rounds };
  let set: BenchSet | null = null;
  try {
    await client.hello(CALL_TIMEOUT_MS);
    result.lanes = isRemote(client) ? lanes : 0;
    result.tier = client.tier;
    result.callMs = spread(await samples(BENCH_SAMPLES, () => client.health(BENCH_CALL_MS)));
    // A bucket bills each key of a look-up as a request.
    const isBilled = storeKind(address) === "s3";
    result.lookupMs = await lookups(client, isBilled ? BENCH_BUCKET_SAMPLES : BENCH_SAMPLES);
    const count = await blockCount(client, options.bytes);
    set = await BenchSet.open(count, classes[0], { codec: byClass[classes[0]], fidelity });
    await new Rounds(client, set, result).run(options.rounds, options.onRound);
    if (classes[0] === "kv") result.prompt = promptCost(result, options);
  } catch (error) {
    const { code, message } = toTierkvError(error);
    Object.assign(result, { error: message, errorCode: code });
  } finally {
    // A failure is harmless, because the vault drops the records itself after some minutes.
    if (set !== null) await client.measure(set.namespace, BENCH_CALL_MS, true).catch(() => {});
    set?.close();
    client.close();
  }
  return result;
}

/** Returns the result of a vault that is not measured, with the reason. */
export function unmeasured({ name, address }: VaultTarget, error: string): VaultBench {
  return { ...blank(name, address, "raw"), error };
}

function blank(target: string, address: string, codec: CodecName): VaultBench {
  return {
    target,
    address,
    error: null,
    errorCode: null,
    tier: "vault",
    lanes: 0,
    codec,
    callMs: null,
    lookupMs: null,
    lookupKeys: BENCH_LOOKUP_KEYS,
    plain: null,
    setBytes: null,
    rounds: 0,
    restore: null,
    save: null,
    prompt: null,
  };
}

/** Returns the milliseconds of each call, after one call that warms up. */
async function samples(count: number, work: () => Promise<unknown>): Promise<number[]> {
  await work();
  const all: number[] = [];
  for (let sample = 0; sample < count; sample += 1) all.push(await timedMs(work));
  return all;
}

async function timedMs(work: () => Promise<unknown>): Promise<number> {
  const begunMs = nowMs();
  await work();
  return nowMs() - begunMs;
}

async function lookups(client: Vault, count: number): Promise<Spread> {
  const namespace = measuringNamespace();
  const keys = randomToken(36 * BENCH_LOOKUP_KEYS);
  return spread(await samples(count, () => client.lookup(namespace, keys, BENCH_CALL_MS)));
}

/** Returns how many blocks fit in a small share of the vault and in about BENCH_ROUND_MS a round. */
async function blockCount(client: Vault, bytesMax: number): Promise<number> {
  const { maxBytes } = await client.stats(BENCH_CALL_MS);
  const probed = await client.probe(BENCH_PROBE_CHUNKS, false, BENCH_CALL_MS);
  const inTime = probed === null ? bytesMax : (probed.bytes / probed.ms) * BENCH_ROUND_MS;
  const bytes = Math.min(bytesMax, maxBytes * BENCH_VAULT_SHARE, inTime);
  return Math.max(1, Math.floor(bytes / BENCH_PAGE_BYTES));
}

/** Bytes per second, round by round. */
interface Rates {
  plainFrom: number[];
  plainTo: number[];
  restore: number[];
  save: number[];
}

class Rounds {
  readonly #client: Vault;
  readonly #set: BenchSet;
  readonly #result: VaultBench;
  #wireBytes = 0;

  constructor(client: Vault, set: BenchSet, result: VaultBench) {
    this.#client = client;
    this.#set = set;
    this.#result = result;
  }

  /** Measures all four in every round, because a passing slowdown then hits all of them. The first round warms up. */
  async run(rounds: number, onRound: (done: number) => void = () => {}): Promise<void> {
    const pageBytes = this.#set.count * BENCH_PAGE_BYTES;
    const rates: Rates = { plainFrom: [], plainTo: [], restore: [], save: [] };
    for (let round = 0; round <= rounds; round += 1) {
      await this.#round(round > 0 ? rates : null);
      onRound(round);
    }
    const result = this.#result;
    const pagesOver = pageBytes / this.#wireBytes;
    const hasPlain = rates.plainFrom.length > 0;
    result.setBytes = pageBytes;
    result.plain = hasPlain ? { from: spread(rates.plainFrom), to: spread(rates.plainTo) } : null;
    result.restore = recordRate(rates.restore, hasPlain ? rates.plainFrom : null, pagesOver);
    result.save = recordRate(rates.save, hasPlain ? rates.plainTo : null, pagesOver);
  }

  async #round(rates: Rates | null): Promise<void> {
    const set = this.#set;
    set.renew();
    await this.#client.measure(set.namespace, BENCH_CALL_MS);
    const saveMs = await timedMs(() => this.#save());
    const chunks = Math.ceil(this.#wireBytes / PROBE_CHUNK_BYTES);
    const [from, to] = [await this.#plain(chunks, false), await this.#plain(chunks, true)];
    const restoreMs = await timedMs(() => this.#restore());
    await this.#client.measure(set.namespace, BENCH_CALL_MS, true);
    if (rates === null) return;
    rates.save.push((this.#wireBytes / saveMs) * 1e3);
    rates.restore.push((this.#wireBytes / restoreMs) * 1e3);
    if (from === null || to === null) return;
    rates.plainFrom.push(from);
    rates.plainTo.push(to);
  }

  async #plain(chunks: number, isToVault: boolean): Promise<number | null> {
    const count = Math.min(chunks, BENCH_PROBE_CHUNKS_MAX);
    const probed = await this.#client.probe(count, isToVault, BENCH_CALL_MS);
    return probed === null ? null : (probed.bytes / probed.ms) * 1e3;
  }

  async #save(): Promise<void> {
    const { namespace, count } = this.#set;
    const perBatch = Math.max(1, Math.floor(SAVE_BATCH_BYTES / BENCH_PAGE_BYTES));
    let wireBytes = 0;
    await inTurns(count, perBatch, STORES_IN_FLIGHT_MAX, async (from, to) => {
      const items = this.#set.deferred(from, to);
      try {
        check(await this.#client.store(namespace, items, BENCH_CALL_MS), this.#client);
        for (const { record } of items) wireBytes += record.bytes;
      } finally {
        for (const { record } of items) record.drop();
      }
    });
    this.#wireBytes = wireBytes;
  }

  async #restore(): Promise<void> {
    const set = this.#set;
    const perWindow = Math.max(1, Math.floor(FETCH_WINDOW_BYTES / BENCH_PAGE_BYTES));
    const call = { deadlineMs: BENCH_CALL_MS };
    await inTurns(set.count, perWindow, FETCHES_IN_FLIGHT_MAX, async (from, to) => {
      const { statuses } = await this.#client.fetch(set.namespace, set.plan(from, to), call);
      check([...statuses] as ItemStatus[], this.#client);
    });
  }
}

/** Calls `work` on each range of `step`, with `inFlight` calls at a time. */
async function inTurns(
  count: number,
  step: number,
  inFlight: number,
  work: (from: number, to: number) => Promise<void>,
): Promise<void> {
  let next = 0;
  const worker = async (): Promise<void> => {
    while (next < count) {
      const from = next;
      next = Math.min(count, from + step);
      await work(from, next);
    }
  };
  await Promise.all(Array.from({ length: inFlight }, worker));
}

/** Throws VAULT_REFUSED unless every record was stored, or fetched. */
function check(statuses: readonly ItemStatus[], client: Vault): void {
  const bad = statuses.find(
    (status) => status !== ItemStatus.ACCEPTED && status !== ItemStatus.DURABLE,
  );
  if (bad === undefined) return;
  const { name, address } = client;
  const reason = refusalBy(bad, "counts" in client ? client.counts() : {});
  throw new TierkvError("VAULT_REFUSED", { name, address, call: "a test record", reason });
}

function recordRate(wire: number[], plain: number[] | null, pagesOver: number): RecordRate {
  const ratios = plain?.map((rate, round) => (wire[round] ?? Number.NaN) / rate) ?? null;
  return {
    wire: spread(wire),
    ofPlain: ratios === null ? null : spread(ratios),
    pages: spread(wire.map((rate) => rate * pagesOver)),
  };
}

/** Predicts look-up and transfer of a prompt that the vault holds whole, on an idle machine. */
function promptCost(
  { lookupMs, lookupKeys, restore }: VaultBench,
  { tokens, tokenBytes }: BenchOptions,
): PromptCost | null {
  if (lookupMs === null || restore === null) return null;
  const blocks = Math.ceil(tokens / BENCH_BLOCK_TOKENS);
  const pageBytes = tokens * tokenBytes;
  const wireBytes = Math.round((pageBytes * restore.wire.median) / restore.pages.median);
  const ms =
    Math.ceil(blocks / lookupKeys) * lookupMs.median + (pageBytes / restore.pages.median) * 1e3;
  return { tokens, tokenBytes, wireBytes, ms };
}

function spread(values: readonly number[]): Spread {
  const sorted = [...values].sort((a, b) => a - b);
  const at = (index: number): number => sorted[index] ?? Number.NaN;
  const median = (at((sorted.length - 1) >> 1) + at(sorted.length >> 1)) / 2;
  return { median, min: at(0), max: at(sorted.length - 1) };
}
