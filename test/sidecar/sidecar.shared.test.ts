// Owns the proof that sidecars share memory instead of a vault: blocks come back byte-equal, over no socket, whoever is killed.
import {
  readdirSync,
  readFileSync,
  readlinkSync,
  mkdirSync,
  statSync,
  writeFileSync,
  existsSync,
} from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { ItemStatus } from "../../src/base/block.ts";
import { sleep } from "../../src/base/time.ts";
import { BenchSet } from "../../src/cli/bench/bench-set.ts";
import type { KvCodec } from "../../src/config/config.ts";
import { SidecarLink } from "../../src/control/sidecar-link.ts";
import type { SidecarStatus } from "../../src/sidecar/status.ts";
import { Program, runInside } from "../support/command-line.ts";
import {
  damageAll,
  openShared,
  pathOf,
  REGION_BYTES,
  regionAddress,
  regionHolds,
} from "../support/regions.ts";
import { expectNoLeak, saveAll } from "../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import type { Block, PlanView } from "../support/shim-client.ts";
import { openSidecar, testDirectory } from "../support/sidecars.ts";
import type { TestSidecar } from "../support/sidecars.ts";
import { closeAfterTest, SOON_MS, until } from "../support/vaults.ts";

const PAGE = 8192;
const CHAIN = 24;

interface Place {
  config: string;
  socket: string;
}

function writeConfig(address: string, more = "", cluster = ""): Place {
  const folder = testDirectory();
  const [config, socket, arenas] = ["t.toml", "s.sock", "arenas"].map((name) => join(folder, name));
  mkdirSync(arenas!, { mode: 0o700 });
  const text =
    `[cluster]\nrole = "inference"\nkv_cold = "${address}"\n${cluster}[turbo_quant]\nenabled = false\n` +
    `[vault]\nmax_bytes = ${REGION_BYTES}\n[restore]\nwhen = "always"\nwait_ms = 20000\nstall_ms = 20000\n` +
    `[sidecar]\nsocket = "${socket}"\narena_dir = "${arenas}"\narena_bytes = "64MiB"\n${more}`;
  writeFileSync(config!, text, { mode: 0o600 });
  return { config: config!, socket: socket! };
}

async function startProgram({ config }: Place): Promise<Program> {
  const program = new Program(["sidecar", "--json", "--config", config]);
  closeAfterTest({ close: () => program.signal("SIGKILL") });
  await program.firstResult();
  return program;
}

async function statusOf({ socket }: Place): Promise<SidecarStatus> {
  const link = new SidecarLink(socket);
  try {
    await link.hello(SOON_MS);
    return await link.status(SOON_MS);
  } finally {
    link.close();
  }
}

async function restored(engine: FakeEngine, blocks: readonly Block[]): Promise<PlanView> {
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  for (const [at, block] of blocks.entries()) {
    if (at < (view.placed.get(0)?.length ?? 0)) expect(engine.holds(view, at, block)).toBe(true);
  }
  engine.release(view.plan);
  return view;
}

const placedOf = (view: PlanView): number => view.placed.get(0)?.length ?? 0;

/** Returns the bytes that passed any descriptor of a process, sockets included. */
function descriptorBytes(pid: number): number {
  const text = readFileSync(`/proc/${pid}/io`, "utf8");
  return [...text.matchAll(/^[rw]char: (\d+)$/gm)].reduce(
    (sum, [, count]) => sum + Number(count),
    0,
  );
}

/** Returns the same once the process has read its own files, which encode threads do after readiness. */
async function settledBytes(pid: number): Promise<number> {
  let bytes = descriptorBytes(pid);
  const isSettled = async (): Promise<boolean> => {
    const before = bytes;
    await sleep(100);
    bytes = descriptorBytes(pid);
    return bytes - before < PAGE / 2;
  };
  await until(isSettled, "the sidecar to have started");
  return bytes;
}

/** Returns a process's sockets other than Unix sockets. */
function networkSockets(pid: number): string[] {
  const tables = ["tcp", "tcp6", "udp", "udp6"].map((name) =>
    readFileSync(`/proc/${pid}/net/${name}`, "utf8"),
  );
  const known = new Set(
    tables.flatMap((text) => text.split("\n").map((line) => line.trim().split(/\s+/)[9])),
  );
  return readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
    try {
      const [, inode] = /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/${pid}/fd/${fd}`)) ?? [];
      return inode !== undefined && known.has(inode) ? [inode] : [];
    } catch {
      return [];
    }
  });
}

/** Opens a sidecar of this process on a region. */
async function sidecarOn(
  address: string,
  kv: KvCodec = "raw",
): Promise<{ sidecar: TestSidecar; engine: FakeEngine }> {
  const vaults = { kv: await openShared(address), ssm: null };
  const sidecar = await openSidecar({ vaults, when: "always", waitMs: 20_000, kv });
  return {
    sidecar,
    engine: await FakeEngine.start(sidecar.socketPath, { engine: sidecar.socketPath }),
  };
}

test.each([
  ["of one machine", "", ""],
  ["as two machines", "host = 0\n", "host = 1\n"],
])(
  "one sidecar saves, another restores the same bytes past all sockets, %s",
  async (_of, one, other) => {
    const address = regionAddress();
    const first = writeConfig(address, "", one);
    // Slower, but equal on a machine with coherent caches.
    const second = writeConfig(address, "", `${other}coherence = "clflush"\n`);
    await startProgram(first);
    const reading = await startProgram(second);
    const { pid = 0 } = reading.process;
    expect(reading.stderr).toContain("clflush");
    const saver = await FakeEngine.start(first.socket, { engine: "A" });
    const blocks = makeBlocks("shared", CHAIN, PAGE);
    saver.save(blocks);
    await until(
      async () => (await statusOf(first)).counters["blocks_saved"] === CHAIN,
      "the saves",
    );

    const reader = await FakeEngine.start(second.socket, { engine: "B" });
    const before = await settledBytes(pid);
    const view = await restored(reader, blocks);
    const passed = descriptorBytes(pid) - before;
    expect([view.reason, placedOf(view)]).toEqual(["complete", CHAIN]);
    // Only hashes and slot numbers pass; INT8 blocks alone would exceed half of the pages.
    expect(passed).toBeLessThan((CHAIN * PAGE) / 2);
    expect(networkSockets(pid)).toEqual([]);

    const { vaults, counters } = await statusOf(second);
    expect(vaults.kv).toMatchObject([{ address, tier: "shared", state: "up", lanes: "shared" }]);
    expect(counters).toMatchObject({ blocks_restored_shared: CHAIN });
    expect(counters["fetches"]).toBeGreaterThan(0);
    expect(counters["blocks_restored_vault"] ?? 0).toBe(0);

    const shown = await runInside(["status", "--json", "--config", second.config]);
    expect(shown.exitCode).toBe(0);
    const { targets } = JSON.parse(shown.stdout) as { targets: Record<string, unknown>[] };
    expect(targets[1]).toMatchObject({ address, reachable: true, records: CHAIN });

    const measured = await runInside([
      "bench",
      "--json",
      "--bytes",
      "5000000",
      "--rounds",
      "1",
      "--config",
      second.config,
    ]);
    const { ok, targets: benches } = JSON.parse(measured.stdout) as {
      ok: boolean;
      targets: object[];
    };
    expect([ok, benches]).toMatchObject([
      true,
      [{ address, tier: "shared", lanes: 0, plain: null }],
    ]);

    const explained = await runInside(["explain", "--config", second.config]);
    expect(explained.stdout).toContain("from shared memory");
  },
);

test("kill -9 of one in the middle of saving leaves the other right, and nothing of the dead one behind", async () => {
  const address = regionAddress();
  const { sidecar, engine } = await sidecarOn(address);
  const watcher = await openShared(address);
  const membersOf = async (): Promise<number> =>
    (await watcher.stats(SOON_MS)).counters["members"]!;
  const alone = await membersOf();
  let placed = 0;
  for (let round = 0; round < 3; round += 1) {
    const place = writeConfig(address);
    const program = await startProgram(place);
    const saver = await FakeEngine.start(place.socket, { engine: `A${round}` });
    const chainOf = (number: number): Block[] => makeBlocks(`${round} ${number}`, CHAIN, PAGE);
    let saved = 0;
    const load = async (): Promise<void> => {
      while (!saver.scheduler.isClosed) {
        if (saver.workers[0]!.credits.length >= CHAIN) saver.save(chainOf(saved++));
        await new Promise((resolve) => setImmediate(resolve));
      }
    };
    const loading = load();
    await until(() => saved > 3 + round, "load");
    program.signal("SIGKILL");
    await program.ended();
    await loading;
    saver.close();
    for (let number = 0; number < saved; number += 1) {
      placed += placedOf(await restored(engine, chainOf(number)));
    }
    // The surviving sidecar goes on.
    const own = makeBlocks(`own ${round}`, CHAIN, PAGE);
    await saveAll({ engine, sidecar }, own);
    expect(placedOf(await restored(engine, own))).toBe(CHAIN);
    await until(async () => (await membersOf()) === alone, "the dead to be missed");
  }
  expect(placed).toBeGreaterThan(CHAIN);
  await expectNoLeak({ engine, sidecar });
});

test("a flush empties the region, and the sidecars' copies", async () => {
  const address = regionAddress();
  const [one, other] = [await sidecarOn(address), await sidecarOn(address)];
  const blocks = makeBlocks("flushed", CHAIN, PAGE);
  await saveAll(one, blocks);
  expect(placedOf(await restored(other.engine, blocks))).toBe(CHAIN);
  const { config } = writeConfig(address);
  const named = one.engine.namespace.toString("hex");
  const strange = await runInside([
    "flush",
    "--yes",
    "--namespace",
    "ab".repeat(32),
    "--config",
    config,
  ]);
  expect(strange.stdout).toContain(" 0 records dropped");
  expect(placedOf(await restored(one.engine, blocks))).toBe(CHAIN);
  const flushed = await runInside(["flush", "--yes", "--namespace", named, "--config", config]);
  expect(flushed.stdout).toContain(`${CHAIN} records dropped`);
  for (const { engine, sidecar } of [one, other]) {
    const isGone = async (): Promise<boolean> => placedOf(await restored(engine, blocks)) === 0;
    await until(isGone, "the flush to be heard of");
    expect(sidecar.counters.get("flushed_blocks")).toBe(CHAIN);
  }
  await saveAll(other, blocks);
  const dropped = async (model: string): Promise<string> =>
    (await runInside(["flush", "--yes", "--model", model, "--config", config])).stdout;
  expect(await dropped("test/another")).toContain(" 0 records dropped");
  expect(await dropped("test/model")).toContain(`${CHAIN} records dropped`);
  const isGone = async (): Promise<boolean> => placedOf(await restored(one.engine, blocks)) === 0;
  await until(isGone, "the flush of the model to be heard of");
});

test("records made before a flush are not stored after it", async () => {
  const vault = await openShared(regionAddress());
  const set = closeAfterTest(await BenchSet.open(2, "kv", { codec: 0, fidelity: 0 }));
  const stored = async (known: number): Promise<number[]> => {
    const items = set.deferred(0, set.count);
    const call = vault.store(set.namespace, items, SOON_MS, 0, known);
    const statuses = await call;
    for (const { record } of items) record.drop();
    return statuses;
  };
  const { number } = await vault.flush(set.namespace, SOON_MS);
  const { FLUSHED, ACCEPTED } = ItemStatus;
  expect(await stored(number - 1)).toEqual([FLUSHED, FLUSHED]);
  expect((await vault.stats(SOON_MS)).records).toBe(0);
  expect(await stored(number)).toEqual([ACCEPTED, ACCEPTED]);
});

test.each(["int8-mean-had", "lossless"] as const)(
  "a block that %s makes no shorter is made again as it is, and comes back bit for bit",
  async (kv) => {
    const address = regionAddress();
    const [one, other] = [await sidecarOn(address, kv), await sidecarOn(address, kv)];
    const blocks = makeBlocks(`noise ${kv}`, CHAIN, PAGE);
    // A NaN, for which INT8 has no code, and noise, which lossless cannot shorten.
    for (const { pages } of blocks) for (const page of pages) page.writeUInt16LE(0x7fc1, 500);
    await saveAll(one, blocks);
    expect(placedOf(await restored(other.engine, blocks))).toBe(CHAIN);
    expect(other.sidecar.counters.get("bad_records")).toBe(0);
  },
);

test("damaged bytes are a counted miss, and their record goes", async () => {
  const address = regionAddress();
  const [one, other] = [await sidecarOn(address), await sidecarOn(address)];
  const blocks = makeBlocks("damaged", CHAIN, PAGE);
  await saveAll(one, blocks);
  damageAll(address);
  const view = await restored(other.engine, blocks);
  expect([view.reason, placedOf(view)]).toEqual(["bad_record", 0]);
  expect(other.sidecar.counters.get("bad_records")).toBeGreaterThan(0);
  const vault = await openShared(address);
  await until(async () => {
    await restored(other.engine, blocks);
    return (await vault.stats(SOON_MS)).records === 0;
  }, "what is damaged to go");
  await saveAll(other, blocks);
  expect(placedOf(await restored(other.engine, blocks))).toBe(CHAIN);
});

test("with record keys the region holds no plaintext, and only sidecars with the keys read it", async () => {
  const address = regionAddress();
  const keys = join(testDirectory(), "keys");
  writeFileSync(keys, `${"5a".repeat(32)}\n`, { mode: 0o600 });
  const places = [
    writeConfig(address, `record_keys = "${keys}"\n`),
    writeConfig(address, `record_keys = "${keys}"\n`),
  ];
  for (const place of places) await startProgram(place);
  const saver = await FakeEngine.start(places[0]!.socket, { engine: "A" });
  const blocks = makeBlocks("sealed", CHAIN, PAGE);
  saver.save(blocks);
  await until(async () => (await statusOf(places[0]!)).counters["blocks_saved"] === CHAIN, "saves");
  expect(blocks.some(({ pages }) => regionHolds(address, pages[0]!.subarray(512, 640)))).toBe(
    false,
  );
  const reader = await FakeEngine.start(places[1]!.socket, { engine: "B" });
  expect(placedOf(await restored(reader, blocks))).toBe(CHAIN);
  const stranger = await sidecarOn(address);
  expect(placedOf(await restored(stranger.engine, blocks))).toBe(0);
});

test("a region that is not fit is refused at the start, with its path and a fix", async () => {
  const address = regionAddress();
  await openShared(address);
  const refused = await runProgramOn(writeConfig(`${address}/none`));
  expect(refused).toMatch(/SHARED_REGION.*kv_cold.*none/s);
  writeFileSync(`${address.slice(4)}.txt`, "no region");
  closeAfterTest({
    close: () => import("node:fs").then(({ rmSync }) => rmSync(`${address.slice(4)}.txt`)),
  });
  expect(await runProgramOn(writeConfig(`${address}.txt`))).toMatch(/SHARED_REGION.*chmod 600/s);
  const ofGroup = (text: string): Promise<string> =>
    runProgramOn(writeConfig(address, "", `group = "${text}"\n`));
  // No file takes the place of a device's node.
  const device = "/dev/dax-none.0";
  expect(await runProgramOn(writeConfig(`shm:${device}`))).toMatch(
    /SHARED_REGION.*no such device/s,
  );
  expect(existsSync(device)).toBe(false);
  expect(await ofGroup("no-such")).toMatch(/SHARED_REGION.*group = \\+"no-such\\+".*getent/s);
  expect(await ofGroup("1234")).toMatch(/SHARED_REGION.*mode 600.*group is 1234/s);
  const small = openShared(address, "kv", { maxBytes: REGION_BYTES / 2 });
  await expect(small).rejects.toThrow(/the configuration gives/);
});

test("a region of a group is made with it, and its sidecars and commands reach it", async () => {
  const address = regionAddress();
  const group = process.getgid!();
  const place = writeConfig(address, "", `group = "${group}"\n`);
  await startProgram(place);
  const { mode, gid } = statSync(pathOf(address));
  expect([mode & 0o777, gid]).toEqual([0o660, group]);
  const shown = await runInside(["status", "--json", "--config", place.config]);
  const { targets } = JSON.parse(shown.stdout) as { targets: Record<string, unknown>[] };
  expect(targets[1]).toMatchObject({ address, reachable: true });
});

async function runProgramOn({ config }: Place): Promise<string> {
  const program = new Program(["sidecar", "--json", "--config", config]);
  const { exitCode, stdout, stderr } = await program.ended();
  expect(exitCode).toBe(1);
  return stdout + stderr;
}
