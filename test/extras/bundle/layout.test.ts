// Owns the proof that no byte of a bundle can be another one, be gone or be added without that being found before anything is stored.
import { readdirSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { Importer, openBundle } from "../../../src/extras/bundle/import.ts";
import { Layout } from "../../../src/extras/bundle/layout.ts";
import { bundleKey, digestOf, makeManifest } from "../../../src/extras/bundle/manifest.ts";
import type { BundleConfig } from "../../../src/extras/bundle/manifest.ts";
import { openPool } from "../../../src/sidecar/vaults/pools.ts";
import {
  bundle,
  converse,
  freshPath,
  keyFile,
  openMachine,
  SIGNER,
} from "../../support/bundles.ts";

const BLOCKS = 12;
/** Of what is longer, the bytes that are flipped, spread over it. */
const FLIPS = 100;
const SECRET = Buffer.alloc(32, 0x2b);
const NO_POOLS = { kv: openPool("kv", [], {}), ssm: openPool("ssm", [], {}) };

/** What an import does before it calls a vault. */
function check(path: string): void {
  const layout = new Layout(path);
  const opened = openBundle(layout, [SIGNER]);
  const none = { clients: { kv: [], ssm: [] }, pools: NO_POOLS, keepS: 0, onProgress: () => {} };
  new Importer({ layout, opened, secret: SECRET, ...none }).check();
}

function refusal(path: string): string | null {
  try {
    check(path);
    return null;
  } catch (error) {
    const { code, message } = error as Error & { code: string };
    return `${code} ${message}`;
  }
}

async function makeOne(...more: string[]): Promise<string> {
  const from = await openMachine(1);
  await converse(from, "one", BLOCKS);
  const path = freshPath();
  const of = ["--session", "one", "--sign", keyFile(), ...more];
  expect((await bundle(from.config, "export", path, ...of)).exitCode).toBe(0);
  return path;
}

const filesOf = (path: string): string[] =>
  readdirSync(path, { recursive: true, encoding: "utf8" })
    .map((name) => join(path, name))
    .filter((file) => statSync(file).isFile());

test.each(["--unsealed", "--seal"])(
  "F88 a flipped bit anywhere, a byte less or more, and a file that is gone are found (%s)",
  async (how) => {
    const path = await makeOne(...(how === "--seal" ? [how, keyFile("2b".repeat(32))] : [how]));
    expect(refusal(path)).toBeNull();
    const files = filesOf(path);
    // The index, the marker of a layout, the manifest, the config, a layer.
    expect(files).toHaveLength(5);
    const missed: string[] = [];
    const tried = (what: string): void => {
      if (refusal(path)?.startsWith("BUNDLE_REFUSED") !== true) missed.push(what);
    };
    for (const file of files) {
      const bytes = readFileSync(file);
      const isWhole = how === "--unsealed" && bytes.length < 4096;
      const step = isWhole ? 1 : Math.max(1, Math.floor(bytes.length / FLIPS));
      for (let at = 0; at < bytes.length; at += step) {
        const changed = Buffer.from(bytes);
        changed[at]! ^= 1 << (at % 8);
        writeFileSync(file, changed);
        tried(`${file} ${at}`);
      }
      for (const length of [0, 1, bytes.length >> 1, bytes.length - 1]) {
        writeFileSync(file, bytes);
        truncateSync(file, length);
        tried(`${file} of ${length}`);
      }
      writeFileSync(file, Buffer.concat([bytes, Buffer.from("x")]));
      tried(`${file} and one`);
      rmSync(file);
      tried(`no ${file}`);
      writeFileSync(file, bytes);
    }
    expect(missed).toEqual([]);
    expect(refusal(path)).toBeNull();
  },
);

test("F88 whoever has no key of the signer's can neither sign in its name, nor change, take away or swap what it signed", async () => {
  const path = await makeOne("--unsealed");
  const layout = new Layout(path);
  const { config } = openBundle(layout, [SIGNER]);
  const forger = bundleKey(Buffer.alloc(32, 9));
  const tell = (change: (manifest: string) => string, of: BundleConfig = config): string | null => {
    const made = makeManifest(of, forger);
    layout.write(made.config);
    layout.finish(Buffer.from(change(made.manifest.toString())));
    return refusal(path);
  };
  const theirs = forger.publicKey.toString("hex");
  const own = layout.manifest().toString();
  expect(tell((manifest) => manifest)).toMatch(`signed by ${theirs}, which is no key`);
  expect(tell((manifest) => manifest.replace(theirs, SIGNER))).toMatch(/signature is wrong/);
  expect(tell((manifest) => manifest.replace(theirs, ""))).toMatch(/not signed/);
  const renamed = { ...config, model: "another" };
  expect(tell((manifest) => manifest.replace(theirs, SIGNER), renamed)).toMatch(
    /signature is wrong/,
  );
  const [{ digest }] = config.layers as [BundleConfig["layers"][number]];
  const other = digestOf(Buffer.from("other"));
  layout.write(Buffer.from("other"));
  expect(tell(() => own.replace(digest, other))).toMatch(/other layers than were signed/);
  expect(tell(() => own.replace(/"layers":\[.*?\]/, '"layers":[]'))).toMatch(/other layers/);
  expect(tell(() => own)).toBeNull();
});
