// Owns the proof, with a vault and a gateway that are processes, that a gateway which starts late knows what vaults hold.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { ItemStatus } from "../../../src/base/block.ts";
import { DEFAULT_SEED, rootOf } from "../../../src/gateway/hashes/forms.ts";
import type { Algorithm } from "../../../src/gateway/hashes/forms.ts";
import { Program } from "../../support/command-line.ts";
import { call, testFolder, until } from "../../support/gateways.ts";
import { digest, makeRecord } from "../../support/records.ts";
import { SimEngine } from "../../support/sim-engine.ts";
import { SimPublisher } from "../../support/sim-publisher.ts";
import { startVaultProcess } from "../../support/vault-process.ts";
import type { Place } from "../../support/vault-process.ts";
import { openClient, SOON_MS } from "../../support/vaults.ts";

const SIZE = 16;
const BLOCKS = 40;
const NAMESPACE = digest("of the engines");
const tokensOf = (seed: number): number[] =>
  Array.from({ length: BLOCKS * SIZE + 1 }, (_none, at) => seed * 1000 + at);

interface Scene {
  ask(tokens: readonly number[], more?: object): Promise<Record<string, string>>;
  metrics(): Promise<string>;
  /** The engines go on: what they publish is heard, and with it by what vaults know their blocks. */
  goOn(salt?: string): Promise<void>;
  explain(): Promise<{ requests: { candidates: { pulled: number }[]; reason: string }[] }>;
  gateway: Program;
}

/** Two engines that publish vLLM's own hashes, and a gateway that begins when all of it is over and nothing is replayed. */
async function late(algorithm: Algorithm, vault: string, lookupMs: number): Promise<Scene> {
  const base = { algorithm, root: rootOf(algorithm, DEFAULT_SEED) };
  const publishers = [0, 1].map(() => new SimPublisher({ blockSize: SIZE, kept: 0, base }));
  const engines = [0, 1].map(() => new SimEngine());
  for (const [at, engine] of engines.entries()) {
    await engine.start();
    const publisher = await publishers[at]!.start();
    engine.onPrompt = (tokens) => publisher.take(tokens);
    // What was told of vaults by then is lost on who comes later.
    await publisher.name(NAMESPACE);
    await publisher.tellVault(tokensOf(1));
  }
  const folder = testFolder();
  const config = join(folder, "gateway.toml");
  const listed = (all: readonly string[]): string => all.map((one) => `"${one}"`).join(", ");
  writeFileSync(
    config,
    `[cluster]\nkv_cold = ["${vault}"]\n[gateway]\nlisten = "127.0.0.1:0"\nlookup_ms = ${lookupMs}\n` +
      `socket = "${join(folder, "gateway.sock")}"\nindex_file = "${join(folder, "index")}"\n` +
      `engines = [${listed(engines.map(({ name }) => name))}]\n` +
      `events = [${listed(publishers.map(({ events }) => events))}]\n` +
      `replays = [${listed(publishers.map(({ replays }) => replays))}]\n`,
  );
  const gateway = new Program(["gateway", "--json", "--config", config]);
  onTestFinished(async () => {
    gateway.signal("SIGKILL");
    for (const publisher of publishers) publisher.stop();
    for (const engine of engines) await engine.kill();
  });
  const url = String((await gateway.firstResult())["url"]);
  const metrics = async (): Promise<string> => (await call(url, "/metrics")).text;
  await until(async () => /events_live\{.*\} 1\n.*events_live\{.*\} 1\n/.test(await metrics()));
  const command = (name: string): Promise<Record<string, unknown>> =>
    new Program(["gateway", name, "--json", "--config", config]).firstResult();
  const status = async (): Promise<string> => JSON.stringify(await command("status"));
  return {
    gateway,
    metrics,
    async ask(tokens, more = {}) {
      const body = JSON.stringify({ model: "m", prompt: tokens, stream: true, ...more });
      const answer = await call(url, "/v1/completions", { body });
      expect([answer.code, answer.isCut]).toEqual([200, false]);
      return answer.headers as Record<string, string>;
    },
    async goOn(salt) {
      let seed = 100;
      await until(async () => {
        for (const publisher of publishers) {
          await publisher.name(NAMESPACE);
          const prompt = tokensOf((seed += 1)).slice(0, SIZE);
          await publisher.take(prompt, 0, false, salt ?? null);
        }
        if (salt !== undefined) return (await status()).split("tagged").length === 3;
        return /agreed\{.*\} 1\n.*agreed\{.*\} 1\n/.test(await metrics());
      });
    },
    explain: async () =>
      (await command("explain")) as unknown as Awaited<ReturnType<Scene["explain"]>>,
  };
}

/** Stores the first blocks of a prompt as a sidecar would. */
async function store(
  place: Place,
  algorithm: Algorithm,
  seed: number,
  blocks: number,
  salt: string | null = null,
): Promise<void> {
  const base = { algorithm, root: rootOf(algorithm, DEFAULT_SEED) };
  const hashes = new SimPublisher({ blockSize: SIZE, base }).hashes(tokensOf(seed), salt);
  const client = openClient(place);
  const records = hashes
    .slice(0, blocks)
    .map((blockHash, at) => makeRecord(at, { namespace: NAMESPACE, blockHash }));
  const statuses = await client.put(NAMESPACE, records, SOON_MS);
  expect(statuses.every((status) => status === ItemStatus.ACCEPTED)).toBe(true);
}

test.each<Algorithm>(["sha256_cbor", "sha256"])(
  "%s: a gateway that starts late, without a replay or a saved index, prices what a vault holds",
  async (algorithm) => {
    const place = await startVaultProcess();
    await store(place, algorithm, 1, 30);
    await store(place, algorithm, 3, 20);
    await store(place, algorithm, 4, 10, "team");
    const scene = await late(algorithm, place.address, 1000);
    await scene.goOn();
    const headers = await scene.ask(tokensOf(1));
    expect(headers["x-tierkv-vault-tokens"]).toBe(String(30 * SIZE));
    expect(headers["x-tierkv-reason"]).toBe("vault");
    const [request] = (await scene.explain()).requests;
    expect(request?.reason).toBe("vault");
    expect(request?.candidates.map(({ pulled }) => pulled)).toEqual([30 * SIZE, 30 * SIZE]);
    expect((await scene.ask(tokensOf(2)))["x-tierkv-reason"]).toBe("computed");
    // How much of it is pulled follows from what the first answers took.
    await scene.ask(tokensOf(3));
    expect(await scene.metrics()).toContain("found_blocks 50\n");
    // How a salt goes into a hash is not known before one was heard of.
    const salted = { cache_salt: "team" };
    await scene.ask(tokensOf(5), salted);
    expect(await scene.metrics()).toContain("found_blocks 50\n");
    await scene.goOn("team");
    await scene.ask(tokensOf(4), salted);
    expect(await scene.metrics()).toContain("found_blocks 60\n");
  },
);

test("F112 a vault that hangs, then dies, costs no request, and is asked again once it is back", async () => {
  const place = await startVaultProcess();
  const scene = await late("sha256", place.address, 5);
  await scene.goOn();
  const failed = async (): Promise<number> =>
    Number(/count\{outcome="failed"\} (\d+)/.exec(await scene.metrics())?.[1] ?? 0);
  for (const [at, signal] of (["SIGSTOP", "SIGKILL"] as const).entries()) {
    process.kill(place.pid, signal);
    const before = await failed();
    for (let seed = 10; seed < 14; seed += 1) {
      expect((await scene.ask(tokensOf(10 * at + seed)))["x-tierkv-reason"]).toBe("computed");
    }
    if (signal === "SIGSTOP") await until(async () => (await failed()) > before);
  }
  const again = await startVaultProcess(place.port);
  await store(again, "sha256", 1, 30);
  let seed = 100;
  await until(async () => {
    await scene.ask(tokensOf((seed += 1)));
    return /count\{outcome="(nothing|late)"\} [1-9]/.test(await scene.metrics());
  });
});
