// Owns the proof that a region with a stuck lock costs calls only their time, until the owner is gone.
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setImmediate as turn } from "node:timers/promises";
import { expect, test } from "vitest";
import { createLogger } from "../../../src/base/log.ts";
import { runInside, runProgram } from "../../support/command-line.ts";
import { openShared, pathOf, regionAddress } from "../../support/regions.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, SOON_MS, until } from "../../support/vaults.ts";

/** Script that takes the last member's place and a region's lock, the word in the page behind its superblock, and keeps both. */
const HOLDER = `
import fcntl, mmap, os, struct, sys, time
F_OFD_SETLK, PLACE = 37, 63
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(fd, F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, PLACE, 1, 0))
memory = mmap.mmap(fd, os.fstat(fd).st_size)
while struct.unpack_from("<I", memory, 4096) != (0,):
    time.sleep(0.001)
struct.pack_into("<I", memory, 4096, PLACE + 1)
print(0, flush=True)
time.sleep(600)
`;

/** Starts a process that holds the lock of a region. */
async function holderOf(address: string): Promise<ChildProcess> {
  const holder = spawn("python3", ["-c", HOLDER, pathOf(address)]);
  closeAfterTest({ close: () => holder.kill("SIGKILL") });
  const [said] = (await once(holder.stdout, "data")) as [Buffer];
  expect(String(said).trim()).toBe("0");
  return holder;
}

const [NAMESPACE, KEY] = [Buffer.alloc(32, 1), Buffer.alloc(36, 2)];
const SHORT_MS = 100;

test("while another process keeps the lock calls end in time and turns go on; once it is killed all is well", async () => {
  const address = regionAddress();
  const vault = await openShared(address);
  const holder = await holderOf(address);
  let turns = 0;
  const late = expect(vault.lookup(NAMESPACE, KEY, SHORT_MS)).rejects.toMatchObject({
    code: "VAULT_DEADLINE",
  });
  for (; turns < 3; turns += 1) await turn();
  await late;
  while (!vault.isDown) {
    await expect(vault.lookup(NAMESPACE, KEY, SHORT_MS)).rejects.toThrow(
      /did not answer Lookup within/,
    );
  }
  expect(vault.state).toBe("down");
  await expect(vault.lookup(NAMESPACE, KEY, SOON_MS)).rejects.toMatchObject({ code: "VAULT_DOWN" });
  holder.kill("SIGKILL");
  await until(() => vault.state === "up", "the region to answer again");
  expect([...(await vault.lookup(NAMESPACE, KEY, SOON_MS))]).toEqual([0]);
});

test("a file that was replaced is reported once and used no more, because flushes of the new one do not reach it", async () => {
  const address = regionAddress();
  const warned: string[] = [];
  const destination = { write: (line: string): void => void warned.push(line) };
  const logger = createLogger("test", { level: "warn", tty: false, destination });
  const vault = await openShared(address, "kv", { logger });
  const flushed: unknown[] = [];
  vault.flushes.listen({ onHello: () => {}, onFlush: (scopes) => void flushed.push(scopes) });
  rmSync(pathOf(address));
  const other = await openShared(address);
  await other.flush(null, SOON_MS);
  const end = new AbortController();
  const watch = vault.watch({ leaving: false }, SOON_MS, end.signal).catch(() => {});
  await until(() => warned.length > 0, "a warning");
  end.abort();
  await watch;
  expect(warned).toEqual([expect.stringContaining("restart this sidecar")]);
  expect(flushed).toEqual([null]);
  expect([vault.state, other.state]).toEqual(["down", "up"]);
  await expect(vault.lookup(NAMESPACE, KEY, SOON_MS)).rejects.toMatchObject({ code: "VAULT_DOWN" });
});

test("opening a region whose lock is held reports that, and waits neither for ever nor in the event loop", async () => {
  const address = regionAddress();
  await openShared(address);
  const holder = await holderOf(address);
  const folder = testDirectory();
  const config = join(folder, "t.toml");
  writeFileSync(config, `[cluster]\nrole = "inference"\nkv_cold = "${address}"\n`, { mode: 0o600 });
  const { exitCode, stdout } = await runProgram(["flush", "--yes", "--config", config]);
  expect([exitCode, stdout]).toEqual([1, expect.stringMatching(/a process keeps it/)]);
  const opening = openShared(address);
  await turn();
  holder.kill("SIGKILL");
  expect((await opening).state).toBe("up");
});

test("status says of a region how full it is, and nothing of bytes that it does not count", async () => {
  const address = regionAddress();
  await openShared(address);
  const config = join(testDirectory(), "t.toml");
  writeFileSync(config, `[cluster]\nrole = "inference"\nkv_cold = "${address}"\n`, { mode: 0o600 });
  const { stdout } = await runInside(["status", "--config", config]);
  expect(stdout).toMatch(/kv_cold +shm:\S+ +up /);
  expect(stdout).toContain(" of 33.");
  expect(stdout).not.toMatch(/B\/s|lanes open/);
});
