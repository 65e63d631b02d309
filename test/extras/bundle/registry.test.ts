// Owns the proof that a bundle comes back from a registry as it went, that logins reach nobody else, and that what fails on the way is found and gone on with.
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { LayerSeal, packLayer } from "../../../src/extras/bundle/layer.ts";
import { Layout } from "../../../src/extras/bundle/layout.ts";
import { bundleKey, makeManifest } from "../../../src/extras/bundle/manifest.ts";
import { parseReference } from "../../../src/extras/bundle/registry.ts";
import { freshPath } from "../../support/bundles.ts";
import { certificate, secretFile } from "../../support/closed-vaults.ts";
import { runInside, runProgram, withoutProgress } from "../../support/command-line.ts";
import type { Outcome } from "../../support/command-line.ts";
import { noise } from "../../support/records.ts";
import { LOGIN, startRegistry } from "../../support/registry.ts";
import type { TestRegistry } from "../../support/registry.ts";
import { testDirectory } from "../../support/sidecars.ts";

const LAYERS = 4;

/** Of noise: only who imports it looks into layers. */
function makeLayout(path: string): Layout {
  const layout = Layout.create(path);
  const seal = new LayerSeal(Buffer.alloc(32, 1), Buffer.alloc(32, 2));
  const layers = Array.from({ length: LAYERS }, (_, at) => {
    const bytes = seal.close(packLayer(noise(84, at), [noise(50_000, at)]), at);
    return { digest: layout.write(bytes), size: bytes.length, class: "kv" as const };
  });
  const none = { session: null, tenant: 0, tokens: null, codecs: [], model: "", salt: "" };
  const counts = { blocks: LAYERS, records: LAYERS, bytes: 0 };
  const config = { version: 1, namespace: "", seal: "bundle", ...none, ...counts, layers } as const;
  const made = makeManifest({ ...config, codecs: [] }, bundleKey(Buffer.alloc(32, 3)));
  layout.write(made.config);
  layout.finish(made.manifest);
  return layout;
}

interface Scene {
  registry: TestRegistry;
  layout: Layout;
  reference: string;
  run(...words: string[]): Promise<Outcome>;
}

/** Over TLS it is the real program that trusts the registry; else a command inside this process, which starts sooner. */
async function openScene(isTls: boolean, login: string = LOGIN): Promise<Scene> {
  const ca = certificate("ca");
  const identity = isTls ? certificate("server", ca, { hosts: ["localhost"] }) : null;
  const registry = await startRegistry(identity);
  const home = testDirectory();
  mkdirSync(join(home, ".docker"));
  const auths = { [registry.address]: { auth: Buffer.from(login).toString("base64") } };
  writeFileSync(join(home, ".docker", "config.json"), JSON.stringify({ auths }));
  const env = { HOME: home, NODE_EXTRA_CA_CERTS: secretFile(ca.certPem) };
  return {
    registry,
    layout: makeLayout(freshPath()),
    reference: `oci://${registry.address}/kv/handbook:1`,
    run: (...words) =>
      isTls
        ? runProgram(["bundle", ...words, "--json"], { env })
        : runInside(["bundle", ...words, "--json", "--plain-http"], { env }),
  };
}

const namesOf = (path: string): string[] =>
  readdirSync(path, { recursive: true, encoding: "utf8" }).toSorted();

test("what was pushed is pulled as it was, and no login goes to where blobs are", async () => {
  const { registry, layout, reference, run } = await openScene(true);
  const pushed = await run("push", layout.path, reference);
  expect([pushed.exitCode, withoutProgress(pushed.stderr)]).toEqual([0, ""]);
  expect(JSON.parse(pushed.stdout)).toMatchObject({ blobs: LAYERS + 1, sent: LAYERS + 1 });
  // Who finds the manifest finds all that it names.
  expect(registry.asked.at(-1)).toBe("PUT manifests/1");
  const path = freshPath();
  const pulled = await run("pull", reference, path);
  expect([pulled.exitCode, withoutProgress(pulled.stderr)]).toEqual([0, ""]);
  const names = namesOf(layout.path);
  expect(namesOf(path)).toEqual(names);
  for (const name of names.filter((one) => /[\da-f]{64}|json/.test(one))) {
    expect(readFileSync(join(path, name)).equals(readFileSync(join(layout.path, name)))).toBe(true);
  }
  expect(registry.told).toEqual(Array(LAYERS + 1).fill(undefined));
});

test("F88 blobs that come changed, or in part, are refused; what had come by then does not travel again", async () => {
  const { registry, layout, reference, run } = await openScene(false);
  registry.uploadsMax = 3;
  const cut = await run("push", layout.path, reference);
  expect([cut.exitCode, cut.stderr]).toEqual([1, expect.stringMatching(/503 too many/)]);
  expect(registry.manifests.size).toBe(0);
  registry.uploadsMax = Infinity;
  expect(JSON.parse((await run("push", layout.path, reference)).stdout)).toMatchObject({ sent: 2 });
  expect(JSON.parse((await run("push", layout.path, reference)).stdout)).toMatchObject({ sent: 0 });

  const path = freshPath();
  let passed = 0;
  const third = (spoil: (bytes: Buffer) => Buffer | null) => (bytes: Buffer) => {
    passed += 1;
    return passed === 3 ? spoil(bytes) : bytes;
  };
  registry.spoil = third((bytes) => Buffer.from(bytes.toReversed()));
  expect((await run("pull", reference, path)).stderr).toMatch(/came with other bytes/);
  passed = 2;
  registry.spoil = third(() => null);
  expect((await run("pull", reference, path)).stderr).toMatch(/REGISTRY_FAILED/);
  passed = 2;
  registry.spoil = third((bytes) => Buffer.concat([bytes, bytes]));
  expect((await run("pull", reference, path)).stderr).toMatch(/more than \d+ bytes/);
  expect(readdirSync(path)).not.toContain("index.json");
  registry.spoil = (bytes) => bytes;
  expect(JSON.parse((await run("pull", reference, path)).stdout)).toMatchObject({
    sent: LAYERS - 1,
  });
  expect(namesOf(path)).toEqual(namesOf(layout.path));
});

test("F88 of a manifest that names a layer larger than any, nothing is fetched", async () => {
  const { registry, layout, reference, run } = await openScene(false);
  await run("push", layout.path, reference);
  const [[name, sound] = ["", Buffer.alloc(0)]] = registry.manifests;
  const manifest = JSON.parse(sound.toString()) as { layers: { size: number }[] };
  manifest.layers.at(-1)!.size = 1e12;
  registry.manifests.set(name, Buffer.from(JSON.stringify(manifest)));
  registry.asked.length = 0;
  const path = freshPath();
  expect((await run("pull", reference, path)).stderr).toMatch(
    /1000000000000 bytes, which none has/,
  );
  expect(registry.asked.filter((asked) => asked.includes("blobs"))).toEqual([]);
});

test("who may not, what is no registry, and a name that is none are told so", async () => {
  const { layout, reference, run } = await openScene(false, "someone:else");
  expect((await run("push", layout.path, reference)).stderr).toMatch(/gives no token: status 401/);
  const nobody = await run("pull", "oci://localhost:65535/kv/handbook", freshPath());
  expect([nobody.exitCode, nobody.stderr]).toEqual([1, expect.stringMatching(/ECONNREFUSED/)]);
  expect((await run("push", layout.path, "handbook")).exitCode).toBe(2);
  expect(parseReference("ghcr.io/a/b/c")).toEqual({
    registry: "ghcr.io",
    repository: "a/b/c",
    name: "latest",
  });
  const digest = `sha256:${"ab".repeat(32)}`;
  expect(parseReference(`oci://[::1]:5000/a:1.0@${digest}`)).toMatchObject({ name: digest });
  for (const bad of ["oci://host", "https://host/a", "host/A", "host/a:", "host/../a"]) {
    expect(() => parseReference(bad)).toThrow(/names no repository/);
  }
});
