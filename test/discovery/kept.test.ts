// Owns the proof that a kept list of vaults is what a sidecar begins with, and that a damaged one counts for nothing.
import { chmodSync, mkdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { KeptSource, readKept } from "../../src/discovery/kept.ts";
import type { ListedVault, VaultSource } from "../../src/discovery/source.ts";
import { testDirectory } from "../support/sidecars.ts";
import { logger } from "../support/vaults.ts";

const vault = (last: number): ListedVault => ({
  address: `10.0.0.${last}:50051`,
  class: "kv",
  certificate: last === 1 ? "PEM" : null,
});

class Said implements VaultSource {
  readonly kind = "etcd";
  say: (list: readonly ListedVault[]) => void = () => {};
  isClosed = false;
  follow(onList: (list: readonly ListedVault[]) => void): void {
    this.say = onList;
  }
  close(): void {
    this.isClosed = true;
  }
}

function open(path: string): { source: Said; kept: KeptSource; heard: ListedVault[][] } {
  const source = new Said();
  const kept = new KeptSource(source, path, logger);
  const heard: ListedVault[][] = [];
  kept.follow((list) => void heard.push([...list]));
  return { source, kept, heard };
}

test("F92 what a source said last is heard at the next start, before it says anything", () => {
  const path = join(testDirectory(), "state", "vaults.json");
  const first = open(path);
  expect(first.heard).toEqual([]);
  first.source.say([vault(1), vault(2)]);
  first.source.say([vault(1), vault(3)]);
  first.kept.close();
  expect(first.source.isClosed).toBe(true);
  expect(statSync(path).mode & 0o777).toBe(0o600);

  const second = open(path);
  expect(second.heard).toEqual([[vault(1), vault(3)]]);
  second.source.say([vault(2)]);
  expect(second.heard[1]).toEqual([vault(2)]);
  expect(readKept(path, logger)).toEqual([vault(2)]);
});

test.each([
  "",
  "{}",
  "[3]",
  '[{"address":"10.0.0.1","class":"kv","certificate":null}]',
  '[{"address":"10.0.0.1:1","class":"gpu","certificate":null}]',
  `[${Array(65).fill('{"address":"10.0.0.1:1","class":"kv","certificate":null}').join()}]`,
])("F93 a damaged list counts for nothing, and is written anew: %#", (text) => {
  const path = join(testDirectory(), "vaults.json");
  writeFileSync(path, text, { mode: 0o600 });
  const { source, heard } = open(path);
  expect(heard).toEqual([]);
  source.say([vault(2)]);
  expect(heard).toEqual([[vault(2)]]);
  expect(readKept(path, logger)).toEqual([vault(2)]);
});

test("F93 a list that others may read is not believed, and one that cannot be written stops nothing", () => {
  const folder = testDirectory();
  const path = join(folder, "vaults.json");
  open(path).source.say([vault(1)]);
  chmodSync(path, 0o644);
  expect(open(path).heard).toEqual([]);

  const closed = join(folder, "closed");
  mkdirSync(closed);
  chmodSync(closed, 0o777);
  const { source, heard } = open(join(closed, "vaults.json"));
  source.say([vault(1)]);
  expect(heard).toEqual([[vault(1)]]);
  expect(() => readFileSync(join(closed, "vaults.json"))).toThrow("ENOENT");
});
