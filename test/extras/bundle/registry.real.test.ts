// Owns the proof that a real registry takes a bundle as OCI's own tools know artifacts, copies it, and gives it back to a machine that restores it.
import { spawn, spawnSync } from "node:child_process";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { expect, test } from "vitest";
import { ARTIFACT_TYPE } from "../../../src/extras/bundle/manifest.ts";
import {
  bundle,
  converse,
  freshPath,
  keyFile,
  openMachine,
  restored,
  SIGNER,
} from "../../support/bundles.ts";
import { FakeEngine } from "../../support/shim-client.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, until } from "../../support/vaults.ts";

const CRANE = process.env["TIERKV_TEST_REGISTRY"] ?? "";
const BLOCKS = 24;

if (CRANE === "") {
  console.warn("skipped: TIERKV_TEST_REGISTRY names no crane; `node .ci/tools.js bundles` does");
}

async function startCrane(): Promise<string> {
  const server = createServer().listen(0, "127.0.0.1");
  await until(() => server.listening, "a free port");
  const address = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  server.close();
  const args = ["registry", "serve", "--address", address, "--disk", testDirectory()];
  const child = spawn(CRANE, args, { stdio: "ignore" });
  closeAfterTest({ close: () => child.kill("SIGKILL") });
  const isUp = async (): Promise<boolean> =>
    (await fetch(`http://${address}/v2/`).catch(() => null))?.ok ?? false;
  await until(isUp, "the registry");
  return address;
}

test.skipIf(CRANE === "")(
  "a bundle is pushed, known by crane, copied to another name, pulled and restored",
  async () => {
    const registry = await startCrane();
    const from = await openMachine(1);
    const { blocks } = await converse(from, "pushed", BLOCKS);
    const path = freshPath();
    const [sign, seal] = [keyFile(), keyFile("2b".repeat(32))];
    const of = ["--session", "pushed", "--sign", sign, "--seal", seal];
    const made = await bundle(from.config, "export", path, ...of);
    const name = `${registry}/kv/handbook`;
    const pushed = await bundle(from.config, "push", path, `oci://${name}:1`, "--plain-http");
    expect(pushed).toMatchObject({ exitCode: 0, result: { digest: made.result["digest"] } });

    const crane = (...words: string[]): string => {
      const { status, stdout, stderr } = spawnSync(CRANE, words, { encoding: "utf8" });
      expect([status, words[0], status === 0 ? "" : stderr]).toEqual([0, words[0], ""]);
      return stdout.trim();
    };
    expect(JSON.parse(crane("manifest", `${name}:1`))).toMatchObject({
      artifactType: ARTIFACT_TYPE,
    });
    crane("copy", `${name}:1`, `${registry}/elsewhere/handbook:2`);
    expect(crane("digest", `${registry}/elsewhere/handbook:2`)).toBe(made.result["digest"]);

    const there = freshPath();
    const copy = `oci://${registry}/elsewhere/handbook@${String(made.result["digest"])}`;
    expect((await bundle(from.config, "pull", copy, there, "--plain-http")).exitCode).toBe(0);
    const to = await openMachine(1);
    const engine = await FakeEngine.start(to.sidecar.socketPath);
    const taken = await bundle(to.config, "import", there, "--trust", SIGNER, "--seal", seal);
    expect(taken).toMatchObject({ exitCode: 0, result: { stored: BLOCKS, blocks: BLOCKS } });
    engine.close();
    expect(await restored(to, blocks)).toBe(BLOCKS);
  },
);
