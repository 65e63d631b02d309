// Owns the proof that compose.yaml is whole without a container runtime: it parses, what it mounts and builds is there, and its programs join and start with its configuration.
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, onTestFinished, test } from "vitest";
import { parse } from "yaml";
import { loadConfig } from "../../src/config/load.ts";
import { Program, runProgram } from "../support/command-line.ts";
import { testDirectory } from "../support/sidecars.ts";
import { until } from "../support/vaults.ts";

const FOLDER = fileURLToPath(new URL("../../deploy/compose", import.meta.url));

interface Service {
  image: string;
  build?: { context: string; dockerfile: string; target?: string };
  volumes?: string[];
  depends_on?: Record<string, unknown>;
  network_mode?: string;
  command?: string[];
}

const compose = parse(readFileSync(join(FOLDER, "compose.yaml"), "utf8"), { merge: true }) as {
  services: Record<string, Service>;
  volumes: Record<string, unknown>;
};
const services = Object.entries(compose.services);

test.each(services)("%s mounts, builds and waits for what there is", (_name, service) => {
  const { build, volumes = [], depends_on: after = {}, network_mode: network } = service;
  for (const volume of volumes) {
    const [from = "", to = ""] = volume.split(":");
    expect(to).toMatch(/^\//);
    if (from.startsWith(".")) expect(existsSync(join(FOLDER, from)), from).toBe(true);
    else expect(Object.keys(compose.volumes)).toContain(from);
  }
  for (const other of Object.keys(after)) expect(compose.services).toHaveProperty(other);
  if (network !== undefined) expect(compose.services).toHaveProperty(network.split(":")[1]!);
  if (build !== undefined) {
    const file = readFileSync(join(FOLDER, build.context, build.dockerfile), "utf8");
    if (build.target !== undefined)
      expect(file).toMatch(new RegExp(`^FROM .* AS ${build.target}$`, "m"));
    expect(service.image).toMatch(/^tierkv\//);
  } else expect(service.image).toMatch(/^tierkv\/|:v?\d+\.\d+\.\d+$/);
});

test("every configuration is one, and Prometheus asks where it is served", () => {
  for (const name of ["vault", "sidecar", "gateway"]) {
    const path = join(FOLDER, `${name}.toml`);
    expect(loadConfig(path, {}).path).toBe(path);
  }
  const { scrape_configs: jobs } = parse(readFileSync(join(FOLDER, "prometheus.yml"), "utf8")) as {
    scrape_configs: { static_configs: { targets: string[] }[] }[];
  };
  const targets = jobs.flatMap((job) => job.static_configs.flatMap((one) => one.targets));
  for (const target of targets) expect(compose.services).toHaveProperty(target.split(":")[0]!);
  const port = (of: string): string | undefined =>
    /^(?:metrics_)?listen = "0\.0\.0\.0:(\d+)"$/m.exec(
      readFileSync(join(FOLDER, `${of}.toml`), "utf8").replace(/^listen = "0.0.0.0:50051"\n/m, ""),
    )?.[1];
  for (const of of ["vault", "sidecar", "gateway"]) expect(targets).toContain(`${of}:${port(of)}`);
});

test("the sidecar reaches the vault after what the service join runs, and the gateway starts", async () => {
  const dir = testDirectory();
  const port = 20_000 + (process.pid % 20_000);
  const here = (text: string): string =>
    text
      .replaceAll("/var/lib/tierkv", join(dir, "lib"))
      .replaceAll("/run/tierkv", join(dir, "run"))
      .replaceAll("/etc/tierkv", join(dir, "etc"))
      .replaceAll(/"\/tmp\/(?=[^"]*")/g, `"${join(dir, "tmp")}/`)
      .replaceAll("0.0.0.0:8100", "127.0.0.1:0")
      .replaceAll(/(?:vault|0\.0\.0\.0):50051/g, `127.0.0.1:${port}`)
      .replaceAll("0.0.0.0:9464", "127.0.0.1:0")
      .replaceAll(/"[48]GiB"/g, '"128MiB"');
  for (const name of ["lib", "run", "etc", "bin"]) mkdirSync(join(dir, name), { mode: 0o700 });
  // As a container's tmpfs: everybody may write there, so no program takes it for its own folder.
  mkdirSync(join(dir, "tmp"));
  chmodSync(join(dir, "tmp"), 0o1777);
  for (const [from, to] of [
    ["vault", "tierkv"],
    ["sidecar", "sidecar"],
    ["gateway", "gateway"],
  ] as const) {
    writeFileSync(
      join(dir, "etc", `${to}.toml`),
      here(readFileSync(join(FOLDER, `${from}.toml`), "utf8")),
    );
  }
  const env = { TIERKV_CONFIG: join(dir, "etc", "tierkv.toml"), HOME: dir };
  const vault = new Program(["vault", "--json"], { env });
  onTestFinished(() => vault.signal("SIGKILL"));
  await vault.firstResult();
  // The shell's lines, with Compose's $$ as it hands them over.
  const lines = here(compose.services["join"]!.command!.join("\n").replaceAll("$$", "$"));
  const { spawnSync } = await import("node:child_process");
  const program = fileURLToPath(new URL("../../bin/tierkv.js", import.meta.url));
  const script = `tierkv() { "${process.execPath}" "${program}" "$@"; }\n${lines}`;
  const run = (): { status: number | null; stderr: string } =>
    spawnSync("sh", ["-ec", script], {
      env: { ...process.env, ...env },
      encoding: "utf8",
      timeout: 60_000,
    });
  const first = run();
  expect(first.status, first.stderr).toBe(0);
  expect(run().status, "a second start joins nobody").toBe(0);
  const config = join(dir, "etc", "sidecar.toml");
  const sidecar = new Program(["sidecar", "--json", "--config", config], { env });
  onTestFinished(() => sidecar.signal("SIGKILL"));
  await sidecar.firstResult();
  await until(
    async () => (await runProgram(["status", "--config", config], { env })).exitCode === 0,
    "the vault is up",
  );
  const front = join(dir, "etc", "gateway.toml");
  const gateway = new Program(["gateway", "--json", "--config", front], { env });
  onTestFinished(() => gateway.signal("SIGKILL"));
  expect(await gateway.firstResult()).toMatchObject({ event: "ready" });
}, 120_000);
