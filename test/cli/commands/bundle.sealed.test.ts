// Owns the proof that what record keys sealed travels as it is: nothing is opened on the way, and others of the same keys restore it.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, expect, test } from "vitest";
import { recordKeysNamespace, recordKeysSet } from "../../../src/base/native.ts";
import {
  converse,
  freshPath,
  keyFile,
  openMachine,
  restored,
  SIGNER,
} from "../../support/bundles.ts";
import { Program } from "../../support/command-line.ts";
import { testDirectory } from "../../support/sidecars.ts";

const KEY = "5a".repeat(32);
const BLOCKS = 53;

beforeAll(() => recordKeysSet(Buffer.from(KEY)));

test("F88 sealed records need no other seal, stay sealed, and are placed where others of the same keys look for them", async () => {
  const more = `record_keys = "${keyFile(KEY)}"\n`;
  const from = await openMachine(2, { more });
  const { engine, blocks } = await converse(from, "sealed", BLOCKS);
  const path = freshPath();
  const args = ["bundle", "export", path, "--session", "sealed", "--sign", keyFile(), "--json"];
  // A process without the keys.
  const bare = join(testDirectory(), "bare.toml");
  writeFileSync(bare, readFileSync(from.config, "utf8").replace(more, ""));
  const unopened = await new Program([...args, "--config", bare]).ended();
  expect([unopened.exitCode, unopened.stderr]).toEqual([2, expect.stringContaining("record_keys")]);
  const made = await new Program([...args, "--config", from.config]).ended();
  const namespace = recordKeysNamespace(engine.namespace).toString("hex");
  expect(JSON.parse(made.stdout)).toMatchObject({
    seal: "records",
    blocks: BLOCKS,
    namespace,
    tokens: null,
  });

  const to = await openMachine(2);
  const take = ["bundle", "import", path, "--trust", SIGNER, "--json", "--config"];
  const foreign = engine.namespace.toString("hex");
  const refused = await new Program([...take, to.config, "--namespace", foreign]).ended();
  expect(refused.stderr).toMatch(/other record_keys/);
  const taken = await new Program([...take, to.config, "--namespace", namespace]).ended();
  expect(JSON.parse(taken.stdout)).toMatchObject({ stored: BLOCKS, blocks: BLOCKS });
  expect(await restored(to, blocks)).toBe(BLOCKS);
});
