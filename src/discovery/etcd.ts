// Owns addresses registered in etcd, of vaults and engines: following their keys, and registering one's own with a lease.
import { isVaultClass } from "../base/block.ts";
import { toTierkvError } from "../base/errors.ts";
import type { Running } from "../base/lifecycle.ts";
import {
  ETCD_ALIVE_MS,
  ETCD_LEASE_S,
  ETCD_PAUSE_MS,
  LISTED_VAULTS_MAX,
} from "../base/limits/pool.ts";
import type { Logger } from "../base/log.ts";
import { jitterMs, sleep } from "../base/time.ts";
import { grpcReason } from "../wire/status.ts";
import { EtcdCalls, KV, LEASE, rangeOf, WATCH } from "./etcd-calls.ts";
import type { EtcdAccess } from "./etcd-calls.ts";
import type { ListedVault } from "./source.ts";

export interface EtcdOptions extends EtcdAccess {
  /** Prefix of the keys; an address follows. */
  prefix: string;
  logger: Logger;
}

/** Replaces OpenSSL's own text, and names the key that mends a refused certificate. */
function inWords(reason: string): string {
  const text = reason.replace(/\S*:error:[^:]*:SSL routines:[^:]*:([^:]+):\S*/, "TLS: $1");
  if (/unable to (verify|get)|self-signed/.test(text))
    return `${text}; name the CA that signed its certificate with [etcd] tls_ca`;
  if (/alert (bad certificate|certificate required)|SSL alert number (42|116)/.test(text))
    return `${text}; it wants a certificate of its clients: [etcd] tls_cert and tls_key`;
  return text;
}

/** Runs `work` on one connection after another until closed; logs a failure once while it repeats. */
async function again(
  options: EtcdOptions,
  signal: AbortSignal,
  work: (calls: EtcdCalls) => Promise<void>,
  failed: string,
  onFailure: (reason: string) => void = () => {},
): Promise<void> {
  let said = "";
  for (let turn = 0; !signal.aborted; turn += 1) {
    const calls = new EtcdCalls(options, turn);
    try {
      await work(calls);
      said = "";
    } catch (error) {
      const reason = inWords(grpcReason(error));
      if (!signal.aborted) onFailure(reason);
      if (reason !== said && !signal.aborted) options.logger.warn({ reason }, failed);
      said = reason;
    } finally {
      calls.close();
    }
    await sleep(jitterMs(ETCD_PAUSE_MS, 2 * ETCD_PAUSE_MS), signal).catch(() => {});
  }
}

/** Reads one registered value; null: not what the source looks for. */
export type Read<Listed> = (address: string, value: string) => Listed | null;

/** A source of vaults, or of whatever `read` returns. */
export class EtcdSource<Listed = ListedVault> {
  readonly kind = "etcd";
  readonly #options: EtcdOptions;
  readonly #read: Read<Listed>;
  readonly #closing = new AbortController();
  failure = "";

  constructor(options: EtcdOptions, read: Read<Listed>) {
    this.#options = options;
    this.#read = read;
  }

  /** As `VaultSource.follow`; `onNone`: called where etcd answers that nothing is registered. */
  follow(onList: (list: readonly Listed[]) => void, onNone: () => void = () => {}): void {
    const onEach = (list: readonly Listed[]): void => {
      this.failure = "";
      if (list.length === 0) onNone();
      else onList(list);
    };
    const { signal } = this.#closing;
    const failed = "etcd does not answer: the last list stays";
    void again(
      this.#options,
      signal,
      (calls) => this.#watch(calls, onEach),
      failed,
      (reason) => {
        this.failure = reason;
      },
    );
  }

  close(): void {
    this.#closing.abort();
  }

  /** Follows the keys until the watch ends. */
  async #watch(calls: EtcdCalls, onEach: (list: readonly Listed[]) => void): Promise<void> {
    const { signal } = this.#closing;
    const range = rangeOf(this.#options.prefix);
    const list = async (): Promise<string> => {
      const { header, kvs } = await calls.unary(KV.Range, { ...range, limit: LISTED_VAULTS_MAX });
      const listed = kvs.flatMap(({ key, value }) => this.#listedIn(key, value));
      if (!signal.aborted) onEach(listed);
      return header?.revision ?? "0";
    };
    const revision = await list();
    let told: Promise<unknown> = Promise.resolve();
    const stream = await calls.stream(WATCH.Watch);
    await new Promise<void>((resolve, reject) => {
      const stop = (): void => stream.cancel();
      const end = (error?: unknown): void => {
        signal.removeEventListener("abort", stop);
        if (error === undefined) resolve();
        else reject(toTierkvError(error));
      };
      signal.addEventListener("abort", stop, { once: true });
      stream.on("data", ({ canceled, events }: { canceled: boolean; events: object[] }) => {
        if (canceled) stream.cancel();
        else if (events.length > 0) told = told.then(list).catch(() => stream.cancel());
      });
      stream.on("error", end).on("end", () => end());
      const start_revision = String(BigInt(revision) + 1n);
      stream.write({ create_request: { ...range, start_revision } });
    });
  }

  /** Returns nothing for a key that is no address. */
  #listedIn(key: Buffer, value: Buffer): Listed[] {
    const address = key.toString().slice(this.#options.prefix.length);
    if (!/^[\w.:[\]-]{3,300}$/.test(address) || !/:\d+$/.test(address)) return [];
    const listed = this.#read(address, value.toString());
    return listed === null ? [] : [listed];
  }
}

/** null: the value was not written by a vault. */
export const vaultAt: Read<ListedVault> = (address, value) =>
  isVaultClass(value) ? { address, class: value, certificate: null } : null;

/** Registers an address until closed, then removes it. */
export function register(options: EtcdOptions, address: string, value: string): Running {
  const closing = new AbortController();
  const key = Buffer.from(options.prefix + address);
  const work = async (calls: EtcdCalls): Promise<void> => {
    const { ID } = await calls.unary(LEASE.LeaseGrant, { TTL: ETCD_LEASE_S });
    await calls.unary(KV.Put, { key, value: Buffer.from(value), lease: ID });
    options.logger.info({ address }, "registered in etcd");
    try {
      await keepAlive(calls, ID, closing.signal);
    } finally {
      if (closing.signal.aborted) await calls.unary(LEASE.LeaseRevoke, { ID }).catch(() => {});
    }
  };
  const failed = "etcd does not answer: this address is not registered for now";
  const running = again(options, closing.signal, work, failed);
  return {
    close: async () => {
      closing.abort();
      await running;
    },
  };
}

/** Runs until the lease is gone, the stream ends or is silent, or `signal` aborts. */
async function keepAlive(calls: EtcdCalls, ID: string, signal: AbortSignal): Promise<void> {
  const stream = await calls.stream(LEASE.LeaseKeepAlive);
  const ended = new AbortController();
  let failure: unknown = null;
  let isAnswered = true;
  stream.on("data", ({ TTL }: { TTL: string }) => {
    isAnswered = true;
    if (Number(TTL) <= 0) ended.abort();
  });
  stream.on("error", (error: Error) => {
    failure = error;
    ended.abort();
  });
  stream.on("end", () => ended.abort());
  const either = AbortSignal.any([signal, ended.signal]);
  while (!either.aborted) {
    // The rest of the lease suffices to renew it at another server.
    if (!isAnswered) {
      failure = new Error("a lease was not renewed in time");
      break;
    }
    isAnswered = false;
    stream.write({ ID });
    await sleep(ETCD_ALIVE_MS, either).catch(() => {});
  }
  stream.cancel();
  if (failure !== null) throw toTierkvError(failure);
}
