// Owns the proof that each wait for another process ends at its bound when that process is silent: one silent peer for each.
import { once } from "node:events";
import { createServer } from "node:net";
import type { AddressInfo, Socket } from "node:net";
import { expect, test, vi } from "vitest";
import { TierkvError } from "../../src/base/errors.ts";
import type * as Limits from "../../src/base/limits/general.ts";
import { Breaker } from "../../src/client/breaker.ts";
import { askOnce } from "../../src/client/vault/ask.ts";
import { FetchPriority } from "../../src/sidecar/vaults/fetch-priority.ts";
import { vaultService } from "../../src/wire/service.ts";
import { openReoffer, roomy } from "../support/copies.ts";
import { openFakeVault } from "../support/fake-vault.ts";
import { lanePeer, onlyLookups, Pages } from "../support/lanes.ts";
import { keysOf, makeRecords, NAMESPACE } from "../support/records.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import { openSidecar } from "../support/sidecars.ts";
import type { TestSidecar } from "../support/sidecars.ts";
import { closeAfterTest, MIB, openClient, openVault, SOON_MS, until } from "../support/vaults.ts";

vi.mock("../../src/base/limits/again.ts", async (load) => ({
  ...(await load<object>()),
  AGAIN_PAUSE_MS: 20,
}));
vi.mock("../../src/base/limits/general.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  STORE_TIMEOUT_MS: 1_000,
  CALL_TIMEOUT_MS: 1_000,
  // Wide enough for a busy machine: the first call is answered within one, the last arrives within the other.
  WATCH_TIMEOUT_MS: 2_000,
  FLUSH_LEAVE_MS: 3_000,
  FLUSH_CONFIRM_MS: 300,
  PROBE_MIN_MS: 10,
  PROBE_MAX_MS: 20,
}));

const PAGE = 8192;
/** Deadline of each call; the peers below never answer. */
const MS = 1_000;
const never = (): void => {};

/** Opens a server that takes connections and stays silent. */
async function openMute(): Promise<{ address: string; connections(): number }> {
  let connections = 0;
  const server = createServer((socket) => {
    connections += 1;
    closeAfterTest({ close: () => socket.destroy() });
    socket.on("error", never);
    socket.resume();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  closeAfterTest(server);
  const { port } = server.address() as AddressInfo;
  return { address: `127.0.0.1:${port}`, connections: () => connections };
}

/** A vault that says hello and has only `handlers`. */
const SILENT = {
  Lookup: never,
  Report: never,
  Stats: never,
  Flush: never,
  Name: never,
  Watch: never,
};

const late = { code: "VAULT_DEADLINE" };
const RECORDS = makeRecords(1);
const KEYS = keysOf(RECORDS);

test("a vault whose machine takes connections and says nothing", async () => {
  const mute = await openMute();
  const client = openClient(mute);
  await Promise.all([
    expect(client.hello(MS)).rejects.toMatchObject(late),
    expect(client.lookup(NAMESPACE, KEYS, MS)).rejects.toMatchObject(late),
    expect(client.health(MS)).rejects.toMatchObject(late),
  ]);
  const asked = { name: "mute", address: mute.address, security: null, timeoutMs: MS };
  await expect(askOnce(asked, vaultService.Peers, {})).rejects.toMatchObject(late);
});

test("a probe that nobody answers is followed by the next", async () => {
  const mute = await openMute();
  const client = openClient(mute);
  let probes = 0;
  const probe = async (): Promise<void> => {
    probes += 1;
    await client.hello(MS);
  };
  const breaker = closeAfterTest(new Breaker({ probe, onChange: never }));
  const failure = new TierkvError("SYSTEM", { reason: "it said nothing" });
  for (let failed = 0; failed < 5; failed += 1) breaker.failed(failure);
  await until(() => probes === 3, "the third probe");
});

test("a vault that says hello and nothing else", async () => {
  const client = openClient(await openFakeVault(SILENT));
  await client.hello(SOON_MS);
  await Promise.all([
    expect(client.lookup(NAMESPACE, KEYS, MS)).rejects.toMatchObject(late),
    expect(client.durable(NAMESPACE, KEYS, MS)).rejects.toMatchObject(late),
    expect(client.report(NAMESPACE, KEYS, "a test", MS)).rejects.toMatchObject(late),
    expect(client.stats(MS)).rejects.toMatchObject(late),
  ]);
});

async function openSilentLanes(
  onLane?: (socket: Socket) => void,
): Promise<{ client: ReturnType<typeof openClient> }> {
  const peer = lanePeer(never);
  const hello = { ...peer, onLane: onLane ?? peer.onLane };
  return { client: openClient(await openFakeVault(SILENT, hello)) };
}

test("lanes that are taken and say nothing, and those that are never welcomed", async () => {
  const { client } = await openSilentLanes();
  await client.hello(SOON_MS);
  await until(() => client.lanes === "up", "the lanes");
  const pages = await Pages.open(1, PAGE);
  const fetching = client.fetch(NAMESPACE, pages.plan(), { deadlineMs: MS });
  await Promise.all([
    expect(client.lookup(NAMESPACE, KEYS, MS)).rejects.toMatchObject(late),
    // Ends at its own time, or with the lanes when another fetch is given up.
    fetching.catch(never),
    expect(client.store(NAMESPACE, pages.encode(), MS)).rejects.toMatchObject(late),
  ]);
  const { client: other } = await openSilentLanes((socket) => void socket.resume());
  await other.hello(SOON_MS);
  expect(other.lanes).not.toBe("up");
});

test("lanes that broke at a vault that has fallen silent are waited for as long as the call may take, and no longer", async () => {
  const peer = lanePeer((socket) => socket.destroy());
  let hellos = 0;
  const { laneToken, onLane } = peer;
  const reply = { protocol: 1, recordClass: 1, epoch: 1, maxKeys: 4096, laneToken };
  const Hello = (_call: unknown, done: (error: null, reply: object) => void): void => {
    hellos += 1;
    if (hellos === 1) done(null, { version: "9", recordVersion: 1, maxRecordBytes: MIB, ...reply });
  };
  const client = openClient(await openFakeVault({ ...SILENT, Hello }, { onLane }));
  await client.hello(SOON_MS);
  const pages = await Pages.open(1, PAGE);
  await expect(client.store(NAMESPACE, pages.encode(), MS)).rejects.toMatchObject(late);
  await until(() => hellos >= 3, "the second attempt to bring them back");
});

/** Opens lanes that answer look-ups with these bits and nothing else. */
const lookupsOnly = (bits: number): ReturnType<typeof lanePeer> => lanePeer(onlyLookups(bits));

async function openPatient(
  handlers: object,
  lanes: object = lanePeer(never),
): Promise<{ sidecar: TestSidecar; engine: FakeEngine }> {
  const vault = await openFakeVault({ ...SILENT, ...handlers }, lanes);
  const vaults = { kv: openClient(vault), ssm: null };
  const sidecar = await openSidecar({ vaults, waitMs: 2 * MS, stallMs: MS, when: "always" });
  return { sidecar, engine: await FakeEngine.start(sidecar.socketPath) };
}

test("a sidecar whose vault says nothing to look-ups, and one whose vault brings nothing", async () => {
  const hashes = hashesOf(makeBlocks("a", 4, PAGE));
  const asks = async (lanes: object): Promise<void> => {
    const { engine } = await openPatient({}, lanes);
    const { placed } = await engine.done(engine.prefetch(hashes));
    expect(placed.get(0) ?? []).toEqual([]);
  };
  await Promise.all([lanePeer(never), lookupsOnly(0xff)].map(asks));
});

test("a sidecar whose vault takes no saves lets them go, and the engine, and itself", async () => {
  const { sidecar, engine } = await openPatient({});
  engine.save(makeBlocks("a", 4, PAGE));
  await until(
    () => sidecar.counters.get("dropped_vault_deadline") === 4,
    "the saves to be dropped",
  );
  const priority = new FetchPriority();
  priority.begin();
  await priority.whenFree(10);
  expect(priority.isFree).toBe(false);
  engine.save(makeBlocks("b", 4, PAGE));
  engine.close();
  await until(() => sidecar.status().engines.length === 0, "the engine to have left");
  await sidecar.close();
});

test("a vault that falls silent counts as down though no engine asks", async () => {
  const { sidecar } = await openPatient({});
  await until(() => sidecar.status().vaults.kv[0]?.state === "down", "the vault to be down");
});

test(
  "re-offers are tried again where a vault does not report holdings, room or acceptance",
  { tags: ["nightly"] },
  async () => {
    const said: [object, object][] = [
      [SILENT, lanePeer(never)],
      [SILENT, lookupsOnly(0)],
      [{ ...SILENT, Stats: roomy }, lookupsOnly(0)],
    ];
    const looksAgain = async ([handlers, lanes]: [object, object]): Promise<void> => {
      const client = openClient(await openFakeVault(handlers as never, lanes));
      await client.hello(SOON_MS);
      const looks = closeAfterTest(openReoffer(client));
      await until(() => looks.count() >= 3, "the third look");
    };
    await Promise.all(said.map(looksAgain));
  },
);

test(
  "a vault that never says whether it flushed is asked again, and left",
  { tags: ["nightly"] },
  async () => {
    let asked = 0;
    const Watch = (
      { request }: { request: { leaving: boolean; client: string } },
      done: (error: null, reply: object) => void,
    ): void => {
      asked += 1;
      // The first is answered, so that the sidecar announces its leaving.
      if (asked === 1) done(null, { epoch: 1, flushes: { number: 0 } });
      else if (request.leaving) asked = 100;
    };
    const client = openClient(await openFakeVault({ ...SILENT, Watch }));
    const { sidecar, engine } = await openPatient({ Watch, Stats: roomy });
    await until(() => asked >= 3, "the third call");
    engine.close();
    await until(() => sidecar.status().engines.length === 0, "the engine to have left");
    await sidecar.close();
    expect(asked).toBe(100);
    const said = { client: "a", name: "a", blocks: 0, bytes: 0, saves: 0, leaving: false };
    const watched = client.watch(said, MS, new AbortController().signal);
    await expect(watched).rejects.toMatchObject(late);
  },
);

test("a sidecar that is told of a flush and stays silent delays its end for a while", async () => {
  const vault = await openVault();
  const [admin, sidecar] = [openClient(vault), openClient(vault)];
  const said = { client: "a", name: "a", blocks: 0, bytes: 0, saves: 0, leaving: false };
  const watched = sidecar.watch(said, SOON_MS, new AbortController().signal);
  await until(async () => (await admin.flush(null, SOON_MS)).sidecars.length === 1, "the sidecar");
  await watched;
  expect((await admin.flush(null, SOON_MS)).sidecars).toMatchObject([{ confirmed: false }]);
});
