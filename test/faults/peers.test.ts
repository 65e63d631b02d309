// Owns the proof that peers of other versions, absent vaults and invalid messages cost hits only.
// @module-tag nightly
import { connect } from "node:http2";
import type { IncomingHttpHeaders } from "node:http2";
import { gzipSync } from "node:zlib";
import { expect, test } from "vitest";
import { PROBE_MIN_MS } from "../../src/base/limits/general.ts";
import type { HelloReply } from "../../src/wire/messages.ts";
import { openFakeVault } from "../support/fake-vault.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import { openSidecar } from "../support/sidecars.ts";
import { closeAfterTest, MIB, openClient, openVault, SOON_MS, until } from "../support/vaults.ts";
import { openStand, underLoad } from "./lib/stand.ts";

const PAGE = 8192;
const PLANS = 50;

test.each<[string, Partial<HelloReply>]>([
  ["another protocol", { protocol: 99 }],
  ["another version of records", { recordVersion: 2 }],
  ["limits of nothing", { maxKeys: 0 }],
])("F24 a vault with %s is never used, and its engine is served on", async (_what, hello) => {
  const calls: string[] = [];
  const refuse = (name: string) => (_call: unknown, done: (error: Error) => void) => {
    calls.push(name);
    done(new Error("must not be asked"));
  };
  const vault = await openFakeVault({ Lookup: refuse("Lookup") }, hello);
  const kv = openClient(vault);
  const sidecar = await openSidecar({ when: "always", vaults: { kv, ssm: null } });
  const engine = await FakeEngine.start(sidecar.socketPath);
  const blocks = makeBlocks("skew", 4, PAGE);
  engine.save(blocks);
  for (let turn = 0; turn < PLANS; turn += 1) {
    const view = await engine.done(engine.prefetch(hashesOf(blocks)));
    expect([view.reason, view.placed.size]).toEqual(["vault_down", 0]);
    engine.release(view.plan);
  }
  expect(calls).toEqual([]);
  await expect(kv.hello(SOON_MS)).rejects.toThrow(/vault at 127\.0\.0\.1:\d+/);
});

test("F33 while the only vault is away a storm of plans asks it no more often than probes do", async () => {
  const stand = await openStand();
  const { weather, load, sidecar, proxy } = stand;
  await underLoad(stand, {
    inject: () => {
      weather.set({ refuse: true });
      proxy.cut();
    },
    acted: () => sidecar.status().vaults.kv[0]!.state === "down",
    during: async () => {
      const before = weather.counts.refused;
      const beganMs = performance.now();
      await load.plansMore(PLANS * 10);
      const probes = Math.ceil((performance.now() - beganMs) / PROBE_MIN_MS);
      // A probe's channel also retries by itself, until the next probe replaces it.
      expect(weather.counts.refused - before).toBeLessThan(10 + probes * 10);
    },
    heal: () => weather.set({}),
  });
});

/** Makes one unary call with a message marked as compressed; returns its gRPC status, or how the stream ended. */
async function callCompressed(address: string, path: string, message: Buffer): Promise<string> {
  const session = connect(`http://${address}`);
  closeAfterTest({ close: () => session.destroy() });
  session.on("error", () => {});
  const body = Buffer.alloc(5 + message.length);
  body[0] = 1;
  body.writeUInt32BE(message.length, 1);
  message.copy(body, 5);
  const stream = session.request({
    ":method": "POST",
    ":path": path,
    "content-type": "application/grpc",
    "grpc-encoding": "gzip",
    te: "trailers",
  });
  return await new Promise((resolve) => {
    const onStatus = (headers: IncomingHttpHeaders): void => {
      const status = headers["grpc-status"];
      if (typeof status === "string") resolve(status);
    };
    stream.on("response", onStatus).on("trailers", onStatus);
    stream.on("error", () => resolve("reset"));
    stream.on("close", () => resolve("closed"));
    stream.resume();
    stream.end(body);
  });
}

test("F42 a message that unpacks to more than its limit is refused, and memory stays", async () => {
  const vault = await openVault();
  const client = openClient(vault);
  await client.hello(SOON_MS);
  const bomb = gzipSync(Buffer.alloc(512 * MIB), { level: 9 });
  expect(bomb.length).toBeLessThan(MIB);
  const before = process.memoryUsage.rss();
  for (let turn = 0; turn < 3; turn += 1) {
    const status = await callCompressed(vault.address, "/tierkv.v1.Vault/Lookup", bomb);
    // RESOURCE_EXHAUSTED, INTERNAL or UNIMPLEMENTED; never OK.
    expect(["8", "12", "13", "reset"]).toContain(status);
  }
  expect(process.memoryUsage.rss() - before).toBeLessThan(256 * MIB);
  await until(async () => await client.health(SOON_MS), "the vault to serve on");
});
