// Owns the proof that damage at rest, faulty senders, crowds and other engines cost hits only, under load.
// @module-tag nightly
import { expect, test } from "vitest";
import { hasBit, ItemStatus, packKeys } from "../../src/base/block.ts";
import { isTierkvError } from "../../src/base/errors.ts";
import { PLANS_MAX } from "../../src/base/limits/general.ts";
import { Crowd, ELSEWHERE, frame, PREFACE } from "../support/crowd.ts";
import type { Manner } from "../support/crowd.ts";
import { makeRecord, makeRecords, NAMESPACE } from "../support/records.ts";
import { FakeEngine, hashesOf, makeBlocks, ShimClient } from "../support/shim-client.ts";
import { corruptStored, openSidecar } from "../support/sidecars.ts";
import { MIB, openClient, SOON_MS } from "../support/vaults.ts";
import type { TestVault } from "../support/vaults.ts";
import { KillableVault } from "./lib/killable.ts";
import { BLOCK_GROUP, BLOCK_PAGE_BYTES, COARSE, Load } from "./lib/load.ts";
import { openStand, underLoad } from "./lib/stand.ts";
import type { Fault, Stand, StandOptions } from "./lib/stand.ts";

const TEST_MS_MAX = 300_000;
const DAMAGED = 200;

/** Flips a byte in each of the vault's records of this shard, at varying places. */
async function damage({ load, vault }: Stand, shard: number): Promise<void> {
  const client = openClient(vault, "kv", { lanes: 0 });
  const { namespace } = load.engine;
  const keys = load.blocks.map(({ hash }) => packKeys(hash, 0, shard));
  const held = await client.lookup(namespace, Buffer.concat(keys), SOON_MS);
  client.close();
  const stored = keys.filter((_, index) => hasBit(held, index)).slice(0, DAMAGED);
  for (const [index, key] of stored.entries()) corruptStored(namespace, key, (index * 37) % 1000);
}

const vaultCount = async ({ vault }: Stand, name: string): Promise<number> => {
  const client = openClient(vault, "kv", { lanes: 0 });
  const { counters } = await client.stats(SOON_MS);
  client.close();
  return counters[name] ?? 0;
};

/** Invalid frames of the local socket: too long, empty, malformed, and incomplete. */
const FRAMES = ["ffffffff", "00000000", "08000000c1c1c1c1c1c1c1c1", "10000000aa"];
const SENDERS = 20;

interface Row {
  title: string;
  options?: StandOptions;
  fault(stand: Stand): Fault;
}

const ROWS: readonly Row[] = [
  {
    title: "F9 records that change at rest",
    fault: (stand) => ({
      inject: () => damage(stand, 0),
      acted: async () =>
        stand.sidecar.counters.get("bad_records") > 0 &&
        (await vaultCount(stand, "quarantined")) > 0,
      heal: () => {},
    }),
  },
  {
    title: "F10 senders of invalid frames",
    fault: ({ sidecar }) => ({
      inject: () => {
        for (let number = 0; number < SENDERS; number += 1) {
          const client = new ShimClient(sidecar.socketPath);
          client.sendBytes(Buffer.from(FRAMES[number % FRAMES.length]!, "hex"));
          client.end();
        }
      },
      acted: () => sidecar.counters.get("frames_refused") >= SENDERS / 2,
      heal: () => {},
    }),
  },
  {
    title: "F11 sound records under the keys of others",
    fault: (stand) => ({
      inject: async () => {
        const client = openClient(stand.vault);
        const wrong = makeRecords(20).map(({ key }) => ({ key, record: makeRecord(99).record }));
        await client.put(NAMESPACE, wrong, SOON_MS);
        client.close();
      },
      acted: async () => (await vaultCount(stand, "refused_wrong_key")) >= 20,
      heal: () => {},
    }),
  },
  {
    title: "F28 shards of one rank that are gone",
    options: { world: 2 },
    fault: (stand) => ({
      inject: () => damage(stand, 1),
      acted: () => stand.sidecar.counters.get("bad_records") > 0,
      heal: () => {},
    }),
  },
  {
    title: "F29 two clients that store the same at once",
    fault: (stand) => ({
      inject: async () => {
        const clients = [openClient(stand.vault), openClient(stand.vault)];
        const records = makeRecords(200);
        await Promise.all(clients.map((client) => client.put(NAMESPACE, records, SOON_MS)));
        for (const client of clients) client.close();
      },
      acted: async () => (await vaultCount(stand, "present")) > 0,
      heal: () => {},
    }),
  },
  {
    title: "F30 eviction of what is being read",
    options: { vault: { maxBytes: 16 * MIB }, chains: 16, grain: COARSE },
    fault: (stand) => {
      let flood: Load;
      return {
        inject: async () => {
          const shape = { seed: stand.seed + 1, engine: "flood", chains: 1, freshEvery: 1 };
          flood = await Load.open(stand.sidecar.socketPath, { ...shape, grain: COARSE });
          flood.start();
        },
        acted: () => (stand.vault as TestVault).stats().counters["evicted"]! > 100,
        heal: async () => {
          await flood.stop();
          flood.engine.close();
          expect(flood.ledger.wrong).toBe(0);
        },
      };
    },
  },
  {
    title: "F32 more plans than an engine may have",
    fault: ({ sidecar }) => {
      let engine: FakeEngine;
      return {
        inject: async () => {
          const shape = { engine: "crowd", groups: [BLOCK_GROUP] };
          engine = await FakeEngine.start(sidecar.socketPath, shape);
          const hashes = hashesOf(makeBlocks("crowd", 1, BLOCK_PAGE_BYTES));
          for (let plan = 0; plan < PLANS_MAX + 100; plan += 1) engine.prefetch(hashes);
        },
        acted: () => sidecar.counters.get("plan_overload") > 0,
        heal: () => engine.close(),
      };
    },
  },
  {
    title: "F37 frames and calls that are too large",
    fault: (stand) => {
      const client = new ShimClient(stand.sidecar.socketPath);
      let isRefused = false;
      return {
        inject: async () => {
          client.sendBytes(Buffer.from("ffffff7f", "hex"));
          const vault = openClient(stand.vault);
          const huge = [{ key: makeRecord(1).key, record: Buffer.alloc(80 * MIB) }];
          const [status] = await vault.put(NAMESPACE, huge, SOON_MS);
          isRefused = status === ItemStatus.TOO_LARGE || status === ItemStatus.OVER_BUDGET;
          vault.close();
        },
        acted: () => isRefused && client.got("refuse").length === 1,
        heal: () => client.close(),
      };
    },
  },
  {
    title: "F44 a second sidecar on the same socket",
    fault: ({ sidecar }) => {
      let code = "";
      return {
        inject: async () => {
          const refused = (error: unknown): void => {
            code = isTierkvError(error) ? error.code : "another";
          };
          await openSidecar({ socket: sidecar.socketPath }).catch(refused);
        },
        acted: () => code === "ADDRESS_IN_USE",
        heal: () => {},
      };
    },
  },
];

test.each(ROWS)("$title", { timeout: TEST_MS_MAX }, async ({ options, fault }) => {
  const stand = await openStand(options);
  await underLoad(stand, fault(stand));
});

const pings = Buffer.concat(
  Array.from({ length: 1000 }, () => frame("ping", 0, 0, Buffer.alloc(8))),
);
const settings = Buffer.concat(Array.from({ length: 1000 }, () => frame("settings", 0, 0)));

test.each<{ title: string; manners: Manner[]; count: number }>([
  { title: "F36 crowds at both sockets", manners: [{ first: Buffer.alloc(64, 0xff) }], count: 100 },
  {
    title: "F40 floods of HTTP/2",
    manners: [
      { first: PREFACE, next: () => pings },
      { first: PREFACE, next: () => settings },
    ],
    count: 2,
  },
])("$title", { timeout: TEST_MS_MAX }, async ({ manners, count }) => {
  // In its own process, because the flooded process must not also serve the load.
  const vault = await KillableVault.start();
  const stand = await openStand({ vault });
  const crowd = new Crowd();
  const [host, port] = vault.address.split(":");
  const at = { host: host!, port: Number(port), localAddress: ELSEWHERE };
  await underLoad(stand, {
    inject: () => {
      for (let number = 0; number < count; number += 1) {
        const manner = manners[number % manners.length]!;
        crowd.add(at, manner);
        if (manner.next === undefined) crowd.add({ path: stand.sidecar.socketPath }, manner);
      }
    },
    acted: () => crowd.closed === crowd.size,
    heal: () => crowd.close(),
  });
});
