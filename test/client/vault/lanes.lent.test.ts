// Owns the proof of a vault of this user on this machine that dies: no page of a record that it did not bring whole, no wrong record after it.
import { join } from "node:path";
import { expect, test } from "vitest";
import { ItemStatus } from "../../../src/base/block.ts";
import { sleep } from "../../../src/base/time.ts";
import type { VaultClient } from "../../../src/client/vault/vault-client.ts";
import { Pages } from "../../support/lanes.ts";
import { NAMESPACE, noise } from "../../support/records.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { startOwnVault } from "../../support/vault-process.ts";
import { MIB, openClient, openVault, SOON_MS, until } from "../../support/vaults.ts";

const { ACCEPTED, DURABLE } = ItemStatus;
const COUNT = 48;
const PAGE = MIB;
const CALL = { deadlineMs: SOON_MS };
const ROUNDS = 6;
const NIGHTLY = { tags: ["nightly"] };

async function openLent(address: string): Promise<VaultClient> {
  const client = openClient({ address });
  await client.hello(SOON_MS);
  await until(() => client.isLent, "lanes that lend");
  return client;
}

/** Checks each page whose record counts; returns how many there are. */
function checkPages(pages: Pages, statuses: Uint8Array | readonly number[]): number {
  let held = 0;
  for (const [index, status] of statuses.entries()) {
    if (status !== ACCEPTED) continue;
    held += 1;
    expect(pages.fetched(index).equals(noise(PAGE, index)), `page ${index}`).toBe(true);
  }
  return held;
}

test("both sides read where records stand, and the vault counts it", async () => {
  const vault = await openVault();
  const path = join(testDirectory(), "vault.sock");
  await vault.door(path);
  const [own, remote] = [await openLent(`unix:${path}`), openClient(vault)];
  const pages = await Pages.open(3, PAGE);
  expect(await own.store(NAMESPACE, pages.encode(), SOON_MS)).toEqual([1, 1, 1]);
  const { statuses, bytes } = await own.fetch(NAMESPACE, pages.plan(), CALL);
  expect(checkPages(pages, statuses)).toBe(3);
  expect(bytes).toBeGreaterThan(3 * PAGE);
  // Over TCP the same records come as bytes.
  const other = await Pages.open(3, PAGE);
  const fetched = await remote.fetch(NAMESPACE, other.plan(), CALL);
  expect([remote.isLent, checkPages(other, fetched.statuses)]).toEqual([false, 3]);
});

test(
  "a vault killed within a fetch leaves whole pages, and its successor serves",
  NIGHTLY,
  async () => {
    let within = 0;
    let { pid, address } = await startOwnVault(undefined, { bytes: 3 * COUNT * PAGE });
    for (let round = 0; round < ROUNDS || within === 0; round += 1) {
      expect(round).toBeLessThan(10 * ROUNDS);
      const client = await openLent(address);
      const pages = await Pages.open(COUNT, PAGE);
      await client.store(NAMESPACE, pages.encode(), SOON_MS);
      const fetching = client.fetch(NAMESPACE, pages.plan(), { deadlineMs: 2000 }).then(
        ({ statuses }) => statuses,
        () => null,
      );
      await sleep(round % ROUNDS);
      process.kill(pid, "SIGKILL");
      const statuses = await fetching;
      if (statuses === null || !statuses.every((status) => status === ACCEPTED)) within += 1;
      if (statuses !== null) checkPages(pages, statuses);
      client.close();
      ({ pid, address } = await startOwnVault(address, { bytes: 3 * COUNT * PAGE }));
    }
    const client = await openLent(address);
    const pages = await Pages.open(2, PAGE);
    await client.store(NAMESPACE, pages.encode(), SOON_MS);
    expect(checkPages(pages, (await client.fetch(NAMESPACE, pages.plan(), CALL)).statuses)).toBe(2);
  },
);

test("a vault killed within a save keeps on its disk only right records", NIGHTLY, async () => {
  const dataDir = testDirectory();
  const options = { bytes: 3 * COUNT * PAGE, dataDir };
  let { pid, address } = await startOwnVault(undefined, options);
  let held = 0;
  for (let round = 0; round < ROUNDS; round += 1) {
    const client = await openLent(address);
    const pages = await Pages.open(COUNT, PAGE);
    const items = pages.encode();
    const storing = client.store(NAMESPACE, items, 2000).then(
      (statuses) => statuses.filter((status) => status === ACCEPTED || status === DURABLE).length,
      () => 0,
    );
    await sleep(5 * round);
    process.kill(pid, "SIGKILL");
    await storing;
    client.close();
    ({ pid, address } = await startOwnVault(address, options));
    const after = await openLent(address);
    const { statuses } = await after.fetch(NAMESPACE, pages.plan(), CALL);
    held = checkPages(pages, statuses);
    after.close();
  }
  const client = await openLent(address);
  const pages = await Pages.open(COUNT, PAGE);
  await client.store(NAMESPACE, pages.encode(), SOON_MS);
  const { statuses } = await client.fetch(NAMESPACE, pages.plan(), CALL);
  expect(checkPages(pages, statuses)).toBe(COUNT);
  expect(held).toBeLessThanOrEqual(COUNT);
});
