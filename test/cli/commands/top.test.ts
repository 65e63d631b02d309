// Owns the proof that `tierkv top` shows what a real sidecar does: engines, vaults, restores, causes of misses, and savings.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { stripVTControlCharacters } from "node:util";
import { expect, onTestFinished, test } from "vitest";
import { wantsColour } from "../../../src/cli/top/terminal.ts";
import { describeTop } from "../../../src/cli/top/top-view.ts";
import type { Picture } from "../../../src/cli/top/top-view.ts";
import type { SidecarStatus } from "../../../src/sidecar/status.ts";
import { runInside } from "../../support/command-line.ts";
import { call, gatewayBefore, until as untilThat } from "../../support/gateways.ts";
import { openRestored } from "../../support/pages.ts";
import type { Scene } from "../../support/scene.ts";
import { hashesOf, makeBlocks } from "../../support/shim-client.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { SimPublisher } from "../../support/sim-publisher.ts";
import { until } from "../../support/vaults.ts";

const PAGE = 1024;
const LOOK = { columns: 200, rows: null, isColoured: false };

function configOf({ vault, sidecar }: Scene): string {
  const path = join(testDirectory(), "tierkv.toml");
  const text = `[cluster]\nkv_cold = "${vault.address}"\n[sidecar]\nsocket = "${sidecar.socketPath}"\n`;
  writeFileSync(path, text);
  return path;
}

test("a restore is worth what computing would have taken less what it took", async () => {
  const { sidecar } = await openRestored();
  const { ledger, restores } = sidecar.status();
  expect(ledger).toMatchObject({ restores: 1, tokens: 320, unpricedTokens: 0 });
  // A second per token; a part of it is taken for the step's own.
  expect(ledger.prefillS).toBeGreaterThan(290);
  expect(ledger.prefillS).toBeLessThan(340);
  expect(ledger.savedS).toBeCloseTo(ledger.prefillS - ledger.restoreS, 6);
  expect(ledger.joules).toBeCloseTo(350 * ledger.prefillS, 3);
  expect(restores).toHaveLength(1);
  expect(restores[0]!.saved! / 1000).toBeCloseTo(ledger.savedS, 1);
});

test("--once prints engines, vaults, restores, misses and savings; --json the account itself", async () => {
  const scene = await openRestored();
  const config = configOf(scene);
  const { exitCode, stdout } = await runInside(["top", "--once", "--config", config]);
  expect(exitCode).toBe(0);
  expect(stdout).toMatch(/engine-1 +vllm +test\/model +restores +1\/1/);
  expect(stdout).toMatch(/^kv +up +[\d.]+ ms .* 127\.0\.0\.1:\d+$/m);
  expect(stdout).toContain("320 tokens in 1 restore");
  expect(stdout).toMatch(
    /1 +never_stored: its first missing block was never stored .* is new, its/,
  );
  expect(stdout).toMatch(/request +320 +vault/);
  expect(stdout).not.toContain("(0.00 ms)");
  const json = await runInside(["status", "--watch", "--json", "--config", config]);
  expect(JSON.parse(json.stdout)).toMatchObject({
    ok: true,
    status: { ledger: { tokens: 320 }, vaults: { kv: [{ seen: { records: 20 } }], ssm: [] } },
  });
});

test("a vault that is down is the first thing said, and makes the exit code 1", async () => {
  const scene = await openRestored();
  await scene.proxy.close();
  await until(() => {
    scene.engine.prefetch(hashesOf(makeBlocks("more", 1, PAGE)));
    return scene.sidecar.status().vaults.kv[0]!.state === "down";
  }, "the vault to count as down");
  const { exitCode, stdout } = await runInside(["top", "--config", configOf(scene)]);
  expect([exitCode, stdout.split("\n")[1]]).toEqual([
    1,
    expect.stringMatching(
      /^PROBLEM: kv vault at \S+ does not answer: .*; it is not used until it answers again/,
    ),
  ]);
});

test("lines fit the terminal, colours take no room, and what comes from outside steers nothing", async () => {
  const scene = await openRestored();
  const status: SidecarStatus = scene.sidecar.status();
  status.engines[0]!.model = "evil\u001B[2Jmodel";
  const problem = { code: "x", severity: "problem", text: "word ".repeat(40) } as const;
  const picture: Picture = { status, fleet: null, before: null, findings: [problem] };
  const plain = describeTop(picture, { ...LOOK, columns: 60 });
  expect(Math.max(...plain.map((line) => line.length))).toBeLessThanOrEqual(60);
  expect(plain.join("\n")).not.toContain("\u001B");
  expect(plain.join(" ").match(/word/g)).toHaveLength(40);
  const painted = describeTop(picture, { columns: 60, rows: 12, isColoured: true });
  expect(painted).toHaveLength(12);
  expect(stripVTControlCharacters(painted.join("\n"))).toBe(plain.slice(0, 12).join("\n"));
});

test("bytes per second come from two pictures", async () => {
  const scene = await openRestored();
  const status = scene.sidecar.status();
  const { bytes_fetched: fetched = 0 } = status.counters;
  const counters = { ...status.counters, bytes_fetched: fetched - 5_000_000 };
  const before = { ...status, at: status.at - 2000, counters };
  const lines = describeTop({ status, fleet: null, before, findings: [] }, LOOK);
  expect(lines.find((line) => line.startsWith("fetched"))).toContain("2.5 MB/s now");
});

test("prompts that engines never asked for are counted by their reason", async () => {
  const scene = await openRestored();
  const status = scene.sidecar.status();
  const lines = (counters: object): string => {
    const shown = { ...status, counters: { ...status.counters, ...counters } };
    return describeTop({ status: shown, fleet: null, before: null, findings: [] }, LOOK).join("\n");
  };
  expect(lines({})).not.toContain("not looked up");
  expect(lines({ shim_prompts_below_gain: 7, shim_prompts_below_block: 2 })).toContain(
    "prompts not looked up: 2 not longer than a block, 7 held by the engine's own cache, or computed sooner than looked up",
  );
  expect(lines({ shim_prompts_not_reading: 3 })).toContain(
    "prompts not looked up: 3 of requests that read no prefix cache, or ask for logprobs",
  );
});

test("a vault of both classes is one row, and records on its disk are counted", async () => {
  const scene = await openRestored();
  const status = scene.sidecar.status();
  const [kv] = status.vaults.kv;
  const disk = { usedBytes: 1e6, maxBytes: 1e9, records: 26, failing: false, archive: null };
  const rates = { ageMs: 0, rttMs: 1, lanes: 4, outBytesPerS: 0, inBytesPerS: 0 };
  const sessions = { sessions: 0, keptBytes: 0, keepsRefused: 0 };
  const counts = { lookupKeys: 0, lookupHits: 0, evicted: 0, records: 0 };
  const sizes = { usedBytes: 0, maxBytes: 1e6, weight: 1 };
  const seen = { ...rates, ...sessions, ...counts, ...sizes, disk, nodes: null };
  const behind = { address: "s3://bucket/x", state: "down", trouble: "403" };
  const both = { ...kv!, share: 1, behind, seen };
  const shown = { ...status, vaults: { kv: [both], ssm: [both] } };
  const text = describeTop({ status: shown, fleet: null, before: null, findings: [] }, LOOK).join(
    "\n",
  );
  expect(text.match(/^kv, ssm +up .* 0, 26 on disk /gm)).toHaveLength(1);
  expect(text).not.toMatch(/^ssm /m);
  expect(text.match(/^behind +DOWN +- .* s3:\/\/bucket\/x$/gm)).toHaveLength(1);
});

test("a vault that has left its pool is not shown as a fault", async () => {
  const scene = await openRestored();
  const status = scene.sidecar.status();
  const [kv] = status.vaults.kv;
  const gone = { ...kv!, state: "down" as const, seen: null, share: 0, hasLeft: true as const };
  const shown = { ...status, vaults: { kv: [kv!, { ...gone, address: "192.0.2.7:1" }], ssm: [] } };
  const look = { status: shown, fleet: null, before: null, findings: [] };
  expect(describeTop(look, LOOK).join("\n")).toMatch(/^kv +- +left +.* 192\.0\.2\.7:1$/m);
});

test("a gateway's engines are shown, where a sidecar runs and where none does", async () => {
  const publisher = await new SimPublisher().start();
  onTestFinished(() => publisher.stop());
  const scene = await gatewayBefore([["m"], ["m"]], { preset: "earliest-token" }, [publisher]);
  const [first, second] = scene.engines;
  const config = join(testDirectory(), "tierkv.toml");
  const top = (option = "--once", more = ""): ReturnType<typeof runInside> => {
    const none = `[sidecar]\nsocket = "${config}.sock"\n`;
    writeFileSync(config, `[gateway]\nsocket = "${scene.socket}"\n${more === "" ? none : more}`);
    return runInside(["top", option, "--config", config]);
  };
  await top();
  const tokens = Array.from({ length: 64 }, (_none, at) => at);
  first!.onPrompt = (prompt) => publisher.take(prompt);
  await untilThat(async () => {
    await call(scene.url, "/v1/completions", {
      body: JSON.stringify({ model: "m", prompt: tokens, stream: true }),
    });
    const { stdout } = await runInside(["gateway", "status", "--json", "--config", config]);
    const { engines } = JSON.parse(stdout) as { engines: { recent: { held: number } }[] };
    return engines[0]!.recent.held > 0;
  });
  await second!.kill();
  await untilThat(async () => (await top("--json")).stdout.includes('"state":"down"'));
  const { exitCode, stdout } = await top();
  expect(exitCode).toBe(1);
  expect(stdout).toMatch(
    /^tierKV: no sidecar runs here\nPROBLEM: engine \S+ of the gateway gets no requests: .+; start it, or /,
  );
  expect(stdout).toMatch(
    new RegExp(
      `^${first!.name} +up +live +0 +0 +\\S+ ms +[1-9]\\S+ % +0.0 % +\\S+ ms \\(\\S+ ms\\) +m$`,
      "m",
    ),
  );
  expect(stdout).toMatch(new RegExp(`^${second!.name} +DOWN +- `, "m"));
  expect(stdout).not.toContain("restores");

  const { sidecar } = await openRestored();
  const both = await top("--once", `[sidecar]\nsocket = "${sidecar.socketPath}"\n`);
  expect(both.stdout).toContain(first!.name);
  expect(both.stdout).toContain("320 tokens in 1 restore");
});

test.each([
  [{}, true],
  [{ NO_COLOR: "" }, true],
  [{ NO_COLOR: "1" }, false],
  [{ TERM: "dumb" }, false],
])("%j: colours %s", (env, isColoured) => {
  expect(wantsColour(env)).toBe(isColoured);
});

test.each(["0", "-1", "x", "99999"])("--interval %s is refused", async (text) => {
  const { exitCode, stderr } = await runInside(["top", "--interval", text]);
  expect(exitCode).toBe(2);
  expect(stderr).toContain(`--interval ${text} is not a number of seconds`);
});
