// Owns the proof that a receipt of sealed records is checked by who has their keys.
import { beforeAll, expect, test } from "vitest";
import { recordKeysNamespace, recordKeysSet } from "../../../src/base/native.ts";
import { NAME, openScene, verify, written } from "../../support/receipts.ts";

beforeAll(() => recordKeysSet(Buffer.from("5a".repeat(32))));

test("F96 what sealed records decode to is compared, under the name that vaults know", async () => {
  const scene = await openScene();
  await written(scene);
  const { exitCode, result } = await verify(scene, NAME);
  const namespace = recordKeysNamespace(scene.reader.namespace).toString("hex");
  expect([exitCode, result]).toMatchObject([0, { namespace, same: 32, differs: 0, gone: 0 }]);
});
