// Owns shared regions for tests: a memory file removed after the test, and its clients.
import { closeSync, openSync, readFileSync, readSync, rmSync, writeSync } from "node:fs";
import type { RecordClass } from "../../src/base/block.ts";
import { randomId } from "../../src/base/time.ts";
import { SharedVault } from "../../src/client/region/shared-vault.ts";
import type { SharedVaultOptions } from "../../src/client/region/shared-vault.ts";
import { closeAfterTest, logger, MIB } from "./vaults.ts";

export const REGION_BYTES: number = 32 * MIB;

/** Returns a unique address without a region yet. */
export function regionAddress(): string {
  const path = `/dev/shm/tierkv-test-${process.pid}-${randomId(6)}`;
  closeAfterTest({ close: () => rmSync(path, { force: true }) });
  return `shm:${path}`;
}

export function pathOf(address: string): string {
  return address.slice("shm:".length);
}

export async function openShared(
  address: string,
  name: RecordClass = "kv",
  options: Partial<SharedVaultOptions> = {},
): Promise<SharedVault> {
  const size = { maxBytes: REGION_BYTES, mustFit: true };
  const coherence = "hardware";
  return closeAfterTest(
    await SharedVault.open({ address, name, coherence, logger, ...size, ...options }),
  );
}

/** Flips a byte in every chunk. */
export function damageAll(address: string): void {
  const fd = openSync(pathOf(address), "r+");
  const head = Buffer.alloc(64);
  readSync(fd, head, 0, head.length, 0);
  const [chunkBytes, chunks, payloadAt] = [24, 32, 56].map((at) =>
    Number(head.readBigUInt64LE(at)),
  );
  const byte = Buffer.alloc(1);
  for (let chunk = 0; chunk < chunks!; chunk += 1) {
    const at = payloadAt! + chunk * chunkBytes! + 1000;
    readSync(fd, byte, 0, 1, at);
    byte[0]! ^= 0x10;
    writeSync(fd, byte, 0, 1, at);
  }
  closeSync(fd);
}

/** Returns whether the region contains these bytes. */
export function regionHolds(address: string, bytes: Buffer): boolean {
  return readFileSync(pathOf(address)).includes(bytes);
}
