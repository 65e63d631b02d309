// Owns the proof that every source of vaults keeps the same promises to who follows it.
import { pino } from "pino";
import { describe, expect, test, vi } from "vitest";
import type { Running } from "../../src/base/lifecycle.ts";
import type * as Limits from "../../src/base/limits/pool.ts";
import { LISTING_PAUSE_MS } from "../../src/base/limits/pool.ts";
import { askOnce } from "../../src/client/vault/ask.ts";
import { addressesOf } from "../../src/discovery/dns.ts";
import { PoolKey } from "../../src/discovery/entry.ts";
import { EtcdSource, register, vaultAt } from "../../src/discovery/etcd.ts";
import { PolledSource } from "../../src/discovery/polled.ts";
import { PoolSource } from "../../src/discovery/pool.ts";
import type { ListedVault, VaultSource } from "../../src/discovery/source.ts";
import { vaultService } from "../../src/wire/service.ts";
import { startDnsServer } from "../support/dns-server.ts";
import { freePort, HAS_ETCD, startEtcd } from "../support/etcd.ts";
import { poolKey, startPooled } from "../support/pooled.ts";
import { closeAfterTest, logger, openVault, SOON_MS, until } from "../support/vaults.ts";

vi.mock("../../src/base/limits/pool.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  MEMBERS_EVERY_MS: 50,
}));

const PORT = 9;

interface Stand {
  source: VaultSource;
  /** Of 127.0.9.`last`, where nobody listens. */
  add(last: number): Promise<void>;
  remove(last: number): Promise<void>;
  stop(): void;
  /** Listed besides. */
  own: string | null;
}

const at = (last: number): string => `127.0.9.${last}:${PORT}`;

async function dns(): Promise<Stand> {
  const { names, resolver, close } = await startDnsServer();
  const address = { host: "vaults.example", port: PORT, text: `dns:vaults.example:${PORT}` };
  const hosts = new Set<string>();
  const say = (): Promise<void> => {
    names.set(address.host, [...hosts]);
    return Promise.resolve();
  };
  return {
    source: new PolledSource("dns", () => addressesOf(address, resolver), logger),
    add: (last) => (hosts.add(`127.0.9.${last}`), say()),
    remove: (last) => (hosts.delete(`127.0.9.${last}`), say()),
    stop: close,
    own: null,
  };
}

async function pool(): Promise<Stand> {
  const key = poolKey();
  const vault = await startPooled({ key });
  const signing = PoolKey.read(key);
  const versions = new Map<number, number>();
  const say = async (last: number, gone: boolean): Promise<void> => {
    const version = (versions.get(last) ?? 0) + 1;
    versions.set(last, version);
    const entry = { address: at(last), class: "kv", certificate: null, gone, version } as const;
    const entries = [signing.sign({ kind: "vault", ...entry })];
    const asked = { name: "the", address: vault.address, security: null, timeoutMs: SOON_MS };
    await askOnce(asked, vaultService.Gossip, { digest: Buffer.alloc(0), entries });
  };
  const seeds = [vault.address];
  return {
    source: new PoolSource({ seeds, securityFor: () => null, logger, onRefused: () => {} }),
    add: (last) => say(last, false),
    remove: (last) => say(last, true),
    stop: () => process.kill(vault.pid, "SIGKILL"),
    own: vault.address,
  };
}

async function etcd(): Promise<Stand> {
  const server = await startEtcd();
  const options = { endpoints: [server.endpoint], prefix: "/t/", tls: null, login: null, logger };
  const registered = new Map<number, Running>();
  return {
    source: new EtcdSource(options, vaultAt),
    add(last) {
      registered.set(last, closeAfterTest(register(options, at(last), "kv")));
      return Promise.resolve();
    },
    async remove(last) {
      await registered.get(last)?.close();
    },
    stop: () => server.kill("SIGKILL"),
    own: null,
  };
}

const SOURCES: readonly (readonly [string, () => Promise<Stand>, boolean])[] = [
  ["dns", dns, true],
  ["pool", pool, true],
  ["etcd", etcd, HAS_ETCD],
];

describe.each(SOURCES)("%s", (kind, open, isHere) => {
  test.skipIf(!isHere)(
    "F84 whole lists, now and after each change; the last one while nobody answers; nothing after the end",
    async () => {
      const { source, own, add, remove, stop } = await open();
      closeAfterTest(source);
      expect(source.kind).toBe(kind);
      const heard: string[][] = [];
      source.follow((list) => heard.push(list.map(({ address }) => address)));
      const untilLast = async (...lasts: readonly number[]): Promise<void> => {
        const wanted = lasts.map(at).toSorted().join();
        const others = (list: readonly string[]): string =>
          list
            .filter((address) => address !== own)
            .toSorted()
            .join();
        await until(() => others(heard.at(-1) ?? []) === wanted, `${kind}: ${wanted}`);
      };
      await add(1);
      await add(2);
      await untilLast(1, 2);
      await add(3);
      await untilLast(1, 2, 3);
      await remove(2);
      await untilLast(1, 3);
      stop();
      await new Promise((resolve) => {
        setTimeout(resolve, 500);
      });
      await untilLast(1, 3);
      expect(heard.filter((list) => list.length === 0)).toEqual([]);
      source.close();
      const count = heard.length;
      await new Promise((resolve) => {
        setTimeout(resolve, 200);
      });
      expect(heard.length).toBe(count);
    },
  );
});

test("a vault that belongs to no pool is asked for a list at intervals", async () => {
  const { address } = await openVault();
  let asked = 0;
  const securityFor = (): null => {
    asked += 1;
    return null;
  };
  const source = new PoolSource({ seeds: [address], securityFor, logger, onRefused: () => {} });
  closeAfterTest(source);
  source.follow(() => {});
  const calls = async (ms: number): Promise<number> => {
    await new Promise((resolve) => {
      setTimeout(resolve, ms);
    });
    return asked;
  };
  await until(() => asked > 0, "the first call");
  expect(await calls(LISTING_PAUSE_MS)).toBeLessThan(20);
  await until(() => asked > 1, "the next");
});

test("a pool of which no vault was ever known is warned of once; of a known one its clients tell", async () => {
  const seeds = [`127.0.0.1:${await freePort()}`];
  const warned = async (known: readonly ListedVault[]): Promise<number> => {
    const lines: string[] = [];
    let tries = 0;
    const securityFor = (): null => {
      tries += 1;
      return null;
    };
    const written = pino({ level: "info" }, { write: (line) => lines.push(line) });
    const options = { seeds, known, securityFor, logger: written, onRefused: () => {} };
    const source = closeAfterTest(new PoolSource(options));
    source.follow(() => {});
    await until(() => tries > known.length + 2, "several tries");
    return lines.filter((line) => line.includes("no list of the pool's vaults")).length;
  };
  expect(await warned([])).toBe(1);
  expect(await warned([{ address: "127.0.0.1:1", class: "kv", certificate: null }])).toBe(0);
});
