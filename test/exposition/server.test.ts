// Owns the proof, on the real programs, that Prometheus can scrape sidecar and vault, and that what it gets is well formed and true.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { Program } from "../support/command-line.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import { until } from "../support/vaults.ts";

const PAGE = 8192;
let dir = "";
const programs: Program[] = [];

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "tierkv-scrape-"));
});

afterEach(async () => {
  for (const program of programs.splice(0)) {
    program.signal("SIGKILL");
    await program.ended();
  }
  rmSync(dir, { recursive: true });
});

/** A program that serves, and where it can be scraped. */
async function start(name: string, toml: string): Promise<{ ready: Fields; url: string }> {
  const config = join(dir, `${name}.toml`);
  writeFileSync(config, toml);
  const program = new Program([name, "--json", "--config", config], { env: { HOME: dir } });
  programs.push(program);
  const ready = await program.firstResult();
  await until(() => program.stderr.includes("metrics can be scraped"), "the endpoint");
  const [, url = ""] = /"url":"([^"]+)"/.exec(program.stderr) ?? [];
  return { ready, url };
}

type Fields = Record<string, unknown>;

function get(url: string, method = "GET"): Promise<{ status: number; type: string; body: string }> {
  return new Promise((resolve, reject) => {
    const call = request(url, { method, agent: false }, (response) => {
      const chunks: string[] = [];
      response.setEncoding("utf8").on("data", (text: string) => chunks.push(text));
      response.once("end", () => {
        const { statusCode: status = 0, headers } = response;
        resolve({ status, type: headers["content-type"] ?? "", body: chunks.join("") });
      });
    });
    call.once("error", reject).end();
  });
}

const SAMPLE = /^([a-z][a-z0-9_]*)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)+)\})? (\d[\d.e+-]*)$/;

/** Samples by name and labels; every line must be one, or say what follows it is. */
async function scrape(url: string): Promise<Map<string, number>> {
  const { status, type, body } = await get(url);
  expect([status, type]).toEqual([200, "text/plain; version=0.0.4; charset=utf-8"]);
  const lines = body.trimEnd().split("\n");
  const kinds = kindsOf(lines);
  const samples = lines
    .filter((line) => line !== "" && !line.startsWith("#"))
    .map((line): [string, number] => {
      const [, name = "", labels = "", value = ""] = SAMPLE.exec(line) ?? [];
      expect(name, line).not.toBe("");
      const kind = kinds.get(name) ?? kinds.get(name.replace(/_(bucket|sum|count)$/, ""));
      expect(kind, line).toBeDefined();
      expect(name.endsWith("_total"), line).toBe(kind === "counter");
      return [labels === "" ? name : `${name}{${labels}}`, Number(value)];
    });
  expect(new Set(samples.map(([name]) => name)).size, "no sample twice").toBe(samples.length);
  return new Map(samples);
}

function kindsOf(lines: readonly string[]): Map<string, string> {
  const told = lines.flatMap((line): [string, string][] => {
    const [, name = "", kind = ""] = /^# TYPE (\S+) (counter|gauge|histogram)$/.exec(line) ?? [];
    return name === "" ? [] : [[name, kind]];
  });
  expect(new Set(told.map(([name]) => name)).size, "no family twice").toBe(told.length);
  return new Map(told);
}

test.each([
  ["127.0.0.1:0", 0],
  ["0.0.0.0:0", 1],
])(
  "a vault without TLS and token on %s says of itself: open to others %i",
  async (listen, seen) => {
    const vault = await start(
      "vault",
      `[cluster]\nrole = "cold"\n[vault]\ninsecure_lan = true\nlisten = "${listen}"\nmetrics_listen = "127.0.0.1:0"\n`,
    );
    expect((await scrape(vault.url)).get("tierkv_vault_insecure_lan")).toBe(seen);
  },
);

test("what was saved, restored, decided and missed is what can be scraped", async () => {
  const listen = 'metrics_listen = "127.0.0.1:0"';
  const vault = await start(
    "vault",
    `[cluster]\nrole = "cold"\n[vault]\ninsecure_lan = true\nlisten = "127.0.0.1:0"\n${listen}\n`,
  );
  const address = String(vault.ready["address"]);
  const socket = join(dir, "run", "sidecar.sock");
  const sidecar = await start(
    "sidecar",
    `[cluster]\nkv_cold = "${address}"\n[sidecar]\nsocket = "${socket}"\n${listen}\n` +
      '[restore]\nwhen = "always"\n',
  );

  const writer = await FakeEngine.start(socket);
  const blocks = makeBlocks("chain", 4, PAGE);
  writer.save(blocks);
  const stored = "tierkv_vault_stored_total";
  await until(async () => (await scrape(vault.url)).get(stored) === 4, "all records in the vault");
  writer.close();
  const reader = await FakeEngine.start(socket, { engine: "engine-2" });
  const beyond = makeBlocks("never stored", 1, PAGE);
  const plan = reader.prefetch(hashesOf([...blocks, ...beyond]));
  expect((await reader.done(plan)).reason).toBe("end_of_hit");

  const ofSidecar = await scrape(sidecar.url);
  const expected: [string, number][] = [
    ["tierkv_sidecar_blocks_restored_vault_total", 4],
    ["tierkv_sidecar_engines", 1],
    ['tierkv_sidecar_misses_total{reason="never_stored"}', 1],
    ['tierkv_sidecar_decisions_total{decision="loaded_always"}', 1],
    ['tierkv_sidecar_restores_ended_total{reason="end_of_hit"}', 1],
    [`tierkv_sidecar_vault_up{class="kv",tier="vault",address="${address}"}`, 1],
    ["tierkv_sidecar_fetch_seconds_count", 1],
    ['tierkv_sidecar_fetch_seconds_bucket{le="+Inf"}', 1],
  ];
  for (const [name, value] of expected) {
    expect(ofSidecar.get(name), `${name} in ${[...ofSidecar.keys()].join(" ")}`).toBe(value);
  }
  expect(ofSidecar.get("tierkv_sidecar_fetch_seconds_sum")).toBeGreaterThan(0);
  const ofVault = await scrape(vault.url);
  expect(ofVault.get('tierkv_vault_records{tier="memory"}')).toBe(4);
  expect(ofVault.get('tierkv_vault_bytes_used{tier="memory"}')).toBeGreaterThan(4 * 100);
  expect(ofVault.get("tierkv_vault_fetched_total")).toBe(4);
  reader.close();

  for (const [path, method] of [
    ["/", "GET"],
    ["/metrics", "POST"],
  ] as const) {
    expect((await get(new URL(path, vault.url).href, method)).status).toBe(404);
  }
  programs[0]?.signal("SIGTERM");
  expect((await programs[0]?.ended())?.exitCode).toBe(0);
});

test("an address that is taken is named with its key", async () => {
  const toml =
    '[vault]\ninsecure_lan = true\nlisten = "127.0.0.1:0"\nmetrics_listen = "127.0.0.1:0"\n[cluster]\nrole = "cold"\n';
  const first = await start("vault", toml);
  const { host } = new URL(first.url);
  const config = join(dir, "second.toml");
  writeFileSync(
    config,
    toml.replace('metrics_listen = "127.0.0.1:0"', `metrics_listen = "${host}"`),
  );
  const second = new Program(["vault", "--config", config], { env: { HOME: dir } });
  programs.push(second);
  const { exitCode, stderr } = await second.ended();
  expect(exitCode).not.toBe(0);
  expect(stderr).toContain("ADDRESS_IN_USE");
  expect(stderr).toContain("[vault] metrics_listen");
});
