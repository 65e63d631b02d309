// Owns the tests of a vault's model names: sent, kept over a restart, bounded, and used to flush.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { toNamespace } from "../../../src/base/block.ts";
import {
  MODEL_NAMES_MAX,
  NAME_BYTES_MAX,
  VAULT_MODELS_MAX,
} from "../../../src/base/limits/general.ts";
import { ModelNames } from "../../../src/vault/state/models.ts";
import { digest, keysOf, makeRecords, NAMESPACE, OTHER_NAMESPACE } from "../../support/records.ts";
import { logger, MIB, openClient, openVault, SOON_MS } from "../../support/vaults.ts";
import type { TestVault } from "../../support/vaults.ts";

let dataDir = "";
beforeEach(() => {
  dataDir = mkdtempSync(join(tmpdir(), "tierkv-models-"));
});
afterEach(() => rmSync(dataDir, { recursive: true, force: true }));

test("names outlive the process, and a damaged file costs only them", () => {
  const names = new ModelNames(dataDir, logger);
  names.learn(toNamespace(NAMESPACE), "Qwen/Qwen3-8B");
  names.learn(toNamespace(OTHER_NAMESPACE), "Qwen/Qwen3-8B");
  const both = [NAMESPACE, OTHER_NAMESPACE].map((namespace) => namespace.toString("hex"));
  expect(new ModelNames(dataDir, logger).namespacesOf("Qwen/Qwen3-8B")).toEqual(both);
  const file = join(dataDir, "models.json");
  expect(Object.keys(JSON.parse(readFileSync(file, "utf8")) as object)).toEqual(both);
  for (const damage of ["{", "[]", '{"x": 1}', `{"${both[0]}": 7}`]) {
    writeFileSync(file, damage);
    expect(new ModelNames(dataDir, logger).namespacesOf("Qwen/Qwen3-8B")).toEqual([]);
  }
});

test("a model that engines were given under several names is found by each of the last ones", () => {
  const names = new ModelNames(dataDir, logger);
  const namespace = toNamespace(NAMESPACE);
  const all = [
    "Qwen/Qwen3-8B",
    ...Array.from({ length: MODEL_NAMES_MAX }, (_none, at) => `/m${at}`),
  ];
  expect(all.map((name) => names.learn(namespace, name))).toEqual(all.map((_name, at) => at === 0));
  for (const known of [names, new ModelNames(dataDir, logger)]) {
    const found = all.map((name) => known.namespacesOf(name).length);
    expect(found).toEqual(all.map((_name, at) => Number(at > 0)));
    expect(known.modelOf(namespace)).toBe(all.at(-1));
  }
  names.learn(toNamespace(OTHER_NAMESPACE), "other");
  const kept = JSON.parse(readFileSync(join(dataDir, "models.json"), "utf8")) as object;
  expect(Object.values(kept)).toEqual([all.slice(1), ["other"]]);
});

test("an invalid name is refused, and names are bounded", () => {
  const names = new ModelNames(null, logger);
  const namespace = toNamespace(NAMESPACE);
  expect(() => names.learn(namespace, "")).toThrow("0 bytes");
  expect(() => names.learn(namespace, "m".repeat(NAME_BYTES_MAX + 1))).toThrow(
    `${NAME_BYTES_MAX + 1} bytes`,
  );
  for (let index = 0; index < VAULT_MODELS_MAX; index += 1) {
    names.learn(toNamespace(digest(`namespace ${index}`)), "m");
  }
  expect(() => names.learn(namespace, "m")).toThrow(String(VAULT_MODELS_MAX));
});

test("a model is flushed in all its namespaces, and no other is", async () => {
  const disk = { dataDir, diskBytes: 64 * MIB, durability: "sync" as const, diskTtlS: null };
  const shapes = [NAMESPACE, OTHER_NAMESPACE, digest("namespace c")];
  const first = await openVault({ disk });
  const client = openClient(first);
  for (const [index, namespace] of shapes.entries()) {
    await client.put(namespace, makeRecords(3, { namespace }), SOON_MS);
    await client.nameModel(namespace, index < 2 ? "one" : "other", SOON_MS);
    await client.nameModel(namespace, "/srv/models/it", SOON_MS);
  }
  await first.close();
  const again = openClient((await openVault({ disk })) satisfies TestVault);
  expect((await again.flush(null, SOON_MS, null, "none")).records).toBe(0);
  await expect
    .poll(async () => (await again.stats(SOON_MS)).disk?.records, { timeout: SOON_MS })
    .toBe(9);
  expect(await again.flush(null, SOON_MS, "kv", "one")).toMatchObject({ records: 6 });
  const left = await again.lookup(shapes[2] ?? NAMESPACE, keysOf(makeRecords(3)), SOON_MS);
  expect([...left]).toEqual([7]);
  expect((await again.stats(SOON_MS)).disk?.records).toBe(3);
});
