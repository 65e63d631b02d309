// Owns the proof that a returning vault counts as holding its disk's records, or nothing.
import { expect, test } from "vitest";
import { splitAddress } from "../../../src/base/hosts.ts";
import { createLogger } from "../../../src/base/log.ts";
import { TestClient } from "../../support/record-client.ts";
import { makeRecords, NAMESPACE } from "../../support/records.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, MIB, openVault, SOON_MS, until } from "../../support/vaults.ts";

test.each([
  ["a disk", true],
  ["memory only", false],
] as const)("of a vault with %s", async (_what, hasDisk) => {
  const dataDir = testDirectory();
  const kept = { dataDir, diskBytes: 64 * MIB, durability: "group", diskTtlS: null } as const;
  const options = hasDisk ? { disk: kept } : {};
  const lines: string[] = [];
  const destination = { write: (line: string): void => void lines.push(line) };
  const logger = createLogger("test", { level: "info", tty: false, destination });
  const first = await openVault(options);
  const { address } = first;
  const client = closeAfterTest(new TestClient({ address, name: "kv", logger }));
  await client.put(NAMESPACE, makeRecords(3), SOON_MS);
  if (hasDisk) await until(() => first.stats().disk?.durableRecords === 3, "the disk");
  await first.close();
  const { port } = splitAddress(address);
  const second = await openVault({ ...options, port });
  if (hasDisk) await until(() => second.stats().disk?.recovering === false, "the recovery");
  await until(
    () =>
      client.hello(SOON_MS).then(
        () => lines.some((line) => line.includes("vault restarted")),
        () => false,
      ),
    "the news",
  );
  const said = lines.filter((line) => line.includes("vault restarted"));
  expect(said).toHaveLength(1);
  if (hasDisk)
    expect(said[0]).toMatch(/"records":3,"bytes":3\d{3},.*vault restarted and recovered 3 records/);
  else expect(said[0]).toMatch(/"level":"warn".*vault restarted and lost its memory/);
});
