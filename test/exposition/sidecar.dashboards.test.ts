// Owns the proof that dashboards and alerts ask for metrics that there are, that Prometheus takes them, and that no panel is empty.
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test, vi } from "vitest";
import { startScrapeServer } from "../../src/exposition/server.ts";
import { sidecarFamilies } from "../../src/exposition/sidecar.ts";
import { exposition } from "../../src/exposition/text.ts";
import type { Family } from "../../src/exposition/text.ts";
import { vaultFamilies } from "../../src/exposition/vault.ts";
import { call, complete, gatewayBefore } from "../support/gateways.ts";
import { openRestored, restoreAgain } from "../support/pages.ts";
import type { Scene } from "../support/scene.ts";
import { testDirectory } from "../support/sidecars.ts";
import { closeAfterTest } from "../support/vaults.ts";

const ROOT = new URL("../../", import.meta.url);
const read = (path: string): string => readFileSync(new URL(path, ROOT), "utf8");
const ALERTS = "deploy/grafana/alerts.yml";
const DASHBOARDS = ["operator", "capacity"] as const;
const isLong = process.env["TIERKV_TEST_LONG"] !== undefined;

/** Of Prometheus's own package; `TIERKV_TEST_PROMETHEUS` names its program where that is not on the path. */
function found(program: string): string | null {
  const given = process.env["TIERKV_TEST_PROMETHEUS"];
  const command = given === undefined ? program : join(dirname(given), program);
  try {
    execFileSync(command, ["--version"], { stdio: "ignore" });
    return command;
  } catch {
    return null;
  }
}

const promtool = found("promtool");
const prometheus = isLong ? found("prometheus") : null;
if (isLong && prometheus === null) console.warn("no prometheus, so no panel is tried in one");

interface Panel {
  title: string;
  type: string;
  targets?: { expr: string }[];
}

function panelsOf(name: (typeof DASHBOARDS)[number]): Panel[] {
  const { panels } = JSON.parse(read(`deploy/grafana/${name}.json`)) as { panels: Panel[] };
  return panels.filter(({ type }) => type !== "row");
}

/** Names that metrics.md has, with what a histogram adds. */
function isKnown(name: string): boolean {
  const page = read("docs/metrics.md");
  const plain = name.replace(/_(?:bucket|sum|count)$/, "");
  return [name, plain].some((one) => page.includes(`| \`${one}\` |`));
}

test("every metric that is asked for is one that is shown", () => {
  const asked = [...DASHBOARDS.map((name) => `deploy/grafana/${name}.json`), ALERTS].flatMap(
    (path) => [...read(path).matchAll(/\b(?:tierkv|process)_[a-z_]+\b(?!\()/g)].map(([one]) => one),
  );
  const names = new Set(asked.filter((name) => /^(?:tierkv|process)_\w+_\w+/.test(name)));
  expect(names.size).toBeGreaterThan(40);
  expect([...names].filter((name) => !isKnown(name))).toEqual([]);
});

test("every alert says what to do", () => {
  const alerts = [...read(ALERTS).matchAll(/- alert: (\w+)/g)].map(([, name]) => name!);
  const headings = [...read("docs/how-to/alerts.md").matchAll(/^## (\w+)$/gm)].map(
    ([, one]) => one,
  );
  expect(headings).toEqual(alerts);
  for (const name of alerts) {
    expect(read(ALERTS)).toContain(`runbook: docs/how-to/alerts.md#${name.toLowerCase()}\n`);
  }
});

test.runIf(promtool !== null)("promtool takes the rules and what is scraped", async () => {
  execFileSync(promtool!, ["check", "rules", fileURLToPath(new URL(ALERTS, ROOT))]);
  const { sidecar, vault } = await openRestored();
  const families = [...sidecarFamilies(sidecar.status()), ...vaultFamilies(vault.stats())];
  const own = new Map(families.map((family) => [family.name, family]));
  const gateway = await gatewayBefore([["m"]]);
  await complete(gateway.url, false);
  const { text } = await call(gateway.url, "/metrics");
  expect(text).toContain("tierkv_gateway_");
  for (const input of [await exposition([...own.values()]), text]) {
    execFileSync(promtool!, ["check", "metrics"], { input });
  }
});

/** Series that are scraped when an alert should fire: each begins with 0 and grows by the number every minute, or stays at `=N`. */
const BAD: Readonly<Record<string, readonly (readonly [string, string])[]>> = {
  TierkvProcessDown: [["up", "=0"]],
  TierkvVaultDown: [["tierkv_sidecar_vault_up{class='kv',address='a:1'}", "=0"]],
  TierkvWrongBytes: [["tierkv_sidecar_namespaces_quarantined_total", "1"]],
  TierkvBadRecords: [["tierkv_sidecar_bad_records_total", "1"]],
  TierkvDiskFailing: [["tierkv_vault_disk_failing", "=1"]],
  TierkvArchiveFailing: [["tierkv_vault_archive_failing", "=1"]],
  TierkvLanesDown: [
    ["tierkv_sidecar_vault_lanes_up{class='kv',address='a:1'}", "=0"],
    ["tierkv_sidecar_vault_up{class='kv',address='a:1'}", "=1"],
  ],
  TierkvSavesDropped: [
    ["tierkv_sidecar_blocks_dropped_total{reason='vault_down'}", "100"],
    ["tierkv_sidecar_blocks_saved_total", "10"],
  ],
  TierkvArenaUnmapped: [["tierkv_sidecar_arenas_unmapped_total", "1"]],
  TierkvRestoresLose: [
    ["tierkv_sidecar_restoring_seconds_total", "2"],
    ["tierkv_sidecar_spared_prefill_seconds_total", "1"],
  ],
  TierkvVaultTooSmall: [
    ["tierkv_sidecar_reuse_gap_seconds_count{outcome='gone'}", "3"],
    ["tierkv_sidecar_reuse_gap_seconds_count{outcome='held'}", "1"],
  ],
  TierkvOpenToAll: [["tierkv_vault_insecure_lan", "=1"]],
  TierkvFailpointsArmed: [["tierkv_sidecar_failpoints", "=1"]],
  TierkvGatewayEngineDown: [["tierkv_gateway_engine_up{engine='e'}", "=0"]],
  TierkvGatewayRefuses: [["tierkv_gateway_refused_total{reason='late'}", "1"]],
};

test.runIf(promtool !== null)("every alert fires when what it names happens", () => {
  const expressions = new Map(
    [...read(ALERTS).matchAll(/- alert: (\w+)\n +expr: (.+)/g)].map(([, name, expr]) => [
      name!,
      expr!,
    ]),
  );
  expect(Object.keys(BAD)).toEqual([...expressions.keys()]);
  const tests = Object.entries(BAD).map(([name, series]) => {
    const given = series.map(([metric, rate]) => {
      const scraped = "instance='i',job='tierkv'";
      const named = metric.includes("{")
        ? metric.replace("{", `{${scraped},`)
        : `${metric}{${scraped}}`;
      const values = rate.startsWith("=") ? `${rate.slice(1)}+0x1440` : `0+${rate}x1440`;
      return { series: named, values };
    });
    return {
      name,
      interval: "1m",
      input_series: given,
      promql_expr_test: [
        {
          expr: `count(ALERTS{alertname="${name}",alertstate="firing"})`,
          eval_time: name === "TierkvVaultTooSmall" ? "13h" : "2h",
          exp_samples: [{ labels: "{}", value: 1 }],
        },
      ],
    };
  });
  const path = join(testDirectory(), "rules.json");
  const rule_files = [fileURLToPath(new URL(ALERTS, ROOT))];
  writeFileSync(path, JSON.stringify({ rule_files, evaluation_interval: "1m", tests }));
  // JSON is YAML.
  execFileSync(promtool!, ["test", "rules", path], { stdio: "pipe" });
});

/** Serves what a process shows. */
async function serve(families: () => readonly Family[]): Promise<string> {
  const server = await startScrapeServer({
    listen: { host: "127.0.0.1", port: 0 },
    key: "",
    read: () => exposition(families()),
    trouble: () => null,
  });
  closeAfterTest(server);
  return new URL(server.url).host;
}

/** A Prometheus that asks a sidecar, its vault and a gateway every second; its address. */
async function startPrometheus({ sidecar, vault }: Scene, gateway: string): Promise<string> {
  const folder = testDirectory();
  const targets = {
    sidecar: await serve(() => sidecarFamilies(sidecar.status())),
    vault: await serve(() => vaultFamilies(vault.stats())),
    gateway: new URL(gateway).host,
  };
  const jobs = Object.entries(targets).map(
    ([job, target]) => `  - job_name: ${job}\n    static_configs: [{ targets: ["${target}"] }]\n`,
  );
  const config = join(folder, "prometheus.yml");
  writeFileSync(config, `global: { scrape_interval: 1s }\nscrape_configs:\n${jobs.join("")}`);
  const port = 20_000 + Math.floor(Math.random() * 20_000);
  const address = `127.0.0.1:${port}`;
  const args = [`--config.file=${config}`, `--storage.tsdb.path=${join(folder, "data")}`];
  const child = spawn(prometheus!, [...args, `--web.listen-address=${address}`], {
    stdio: "ignore",
  });
  closeAfterTest({
    close: async () => {
      child.kill("SIGTERM");
      if (child.exitCode === null) await once(child, "exit");
    },
  });
  return address;
}

test.runIf(prometheus !== null)(
  "a real Prometheus has something for every panel",
  { timeout: 90_000 },
  async () => {
    const scene = await openRestored();
    const gateway = await gatewayBefore([["m"]]);
    const address = await startPrometheus(scene, gateway.url);
    const ask = async (expr: string): Promise<number> => {
      const query = expr
        .replaceAll("$__rate_interval", "30s")
        .replaceAll("$__range", "30s")
        .replaceAll("$instance", ".*");
      const url = `http://${address}/api/v1/query?query=${encodeURIComponent(query)}`;
      const answer = (await (await fetch(url)).json()) as { data: { result: unknown[] } };
      return answer.data.result.length;
    };
    const empty = async (): Promise<string[]> => {
      await restoreAgain(scene);
      await complete(gateway.url, false);
      const titles: string[] = [];
      for (const { title, targets = [] } of DASHBOARDS.flatMap(panelsOf)) {
        for (const { expr } of targets) if ((await ask(expr)) === 0) titles.push(title);
      }
      return titles;
    };
    // Nothing was dropped, so there is no reason to show.
    await vi.waitFor(async () => expect(await empty()).toEqual(["Blocks not stored"]), {
      timeout: 60_000,
      interval: 1000,
    });
  },
);
