// Owns the proof that services are written where their manager looks, are found and removed again, and that a purge takes what is ours.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { beforeEach, describe, expect, onTestFinished, test, vi } from "vitest";
import { advice, checkPlaces, checkReach } from "../../../src/cli/commands/service.ts";
import { ownSocket } from "../../../src/config/own-places.ts";
import { runInside } from "../../support/command-line.ts";
import { testConfig, testDirectory } from "../../support/sidecars.ts";

let home = "";
let config = "";
let unit = "";

beforeEach(() => {
  home = join(testDirectory(), "home");
  config = join(home, ".config", "tierkv", "tierkv.toml");
  unit = join(home, ".config", "systemd", "user", "tierkv-vault.service");
  write(config, '[cluster]\nrole = "kv_cold"\n');
});

function write(path: string, text = "x"): string {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
  return path;
}

const run = (...args: string[]): ReturnType<typeof runInside> =>
  runInside([...args, "--config", config], { env: { HOME: home, XDG_RUNTIME_DIR: home } });

describe.skipIf(process.platform !== "linux")("on Linux", () => {
  test("a dry run shows file and commands and writes nothing", async () => {
    const { exitCode, stdout } = await run("service", "install", "vault", "--user", "--dry-run");
    expect(exitCode).toBe(0);
    expect(stdout).toContain(`# ${unit}\n`);
    expect(stdout).toMatch(
      /^ExecStart=\/\S+ \/\S+ vault --config %h\/\.config\/tierkv\/tierkv\.toml$/m,
    );
    expect(stdout).toContain("systemctl --user daemon-reload\n");
    expect(stdout).toContain("systemctl --user enable --now tierkv-vault.service\n");
    expect(existsSync(unit)).toBe(false);
  });

  test("a service is written, found, and removed once", async () => {
    expect((await run("service", "status")).exitCode).toBe(1);
    const installed = await run("service", "install", "vault", "--user", "--no-start");
    expect(installed.stdout).toContain(`${unit}: written\n`);
    expect(readFileSync(unit, "utf8")).toContain("NoNewPrivileges=yes");
    const found = await run("service", "status", "--json");
    const { services } = JSON.parse(found.stdout) as { services: { name: string; path: string }[] };
    expect(services).toMatchObject([{ name: "vault", scope: "user", path: unit }]);
    expect((await run("service", "uninstall", "vault", "--user", "--dry-run")).stdout).toContain(
      `rm ${unit}`,
    );
    expect(existsSync(unit)).toBe(true);
    expect((await run("service", "uninstall", "vault", "--user")).exitCode).toBe(0);
    expect(existsSync(unit)).toBe(false);
    expect((await run("service", "uninstall", "vault", "--user")).exitCode).toBe(1);
  });

  test("a machine without systemd is told so, and what was written", async () => {
    vi.stubEnv("PATH", home);
    onTestFinished(() => void vi.unstubAllEnvs());
    const { exitCode, stderr } = await run("service", "install", "vault", "--user");
    const why = "`systemctl --user daemon-reload`: this machine has no systemctl";
    const fix = "mend that and run this again, or start `tierkv vault` by other means";
    const said = `tierkv: ${unit} is written, but not started: ${why}; ${fix} (SYSTEM)\n`;
    expect([exitCode, stderr]).toEqual([1, said]);
    const status = await run("service", "status");
    expect(status.stdout).toContain("not known: this machine has no systemctl");
    expect((await run("service", "uninstall", "vault", "--user")).exitCode).toBe(0);
    expect(existsSync(unit)).toBe(false);
  });

  test("a machine that is no vault gets no vault's service", async () => {
    writeFileSync(config, '[cluster]\nrole = "inference"\n');
    const { exitCode, stderr } = await run("service", "install", "vault", "--user");
    expect([exitCode, existsSync(unit)]).toEqual([2, false]);
    expect(stderr).toContain('[cluster] role = "inference": that is an engine');
  });

  test("a service of the machine must see its program and its configuration", () => {
    checkReach(["/usr/bin/node", "/opt/tierkv/bin/tierkv.js", "/etc/tierkv/tierkv.toml"]);
    for (const path of ["/run/user/7/tierkv.toml", "/tmp/tierkv.toml", "/home/a/.venv/bin/node"]) {
      expect(() => checkReach(["/usr/bin/node", path])).toThrow(
        `${path}: a service of the machine`,
      );
    }
  });

  test("systemd's own user for a vault is given no file of another's, and its folder is named", () => {
    const { vault } = testConfig({ socket: "/none" });
    checkPlaces({ vault: { ...vault, dataDir: "/var/lib/tierkv" } }, "systemd");
    const poolKey = { vault: { ...vault, poolKey: "/etc/tierkv/pool-key" } };
    const wrong = '[vault] pool_key = "/etc/tierkv/pool-key": the service\'s own user has only';
    expect(() => checkPlaces(poolKey, "systemd")).toThrow(wrong);
    const archive = { vault: { ...vault, archive: "file:///mnt/archive" } };
    expect(() => checkPlaces(archive, "systemd")).toThrow(
      '[vault] archive = "file:///mnt/archive"',
    );
    const inside = { vault: { ...vault, archive: "file:///var/lib/tierkv/archive" } };
    expect(() => checkPlaces(inside, "systemd")).not.toThrow();
    const service = { name: "vault", scope: "system", manager: "systemd", runAs: null } as const;
    const own = "`STATE_DIRECTORY=/var/lib/tierkv tierkv status` says how it is";
    expect(advice(service)).toEqual([own]);
    expect(advice({ ...service, runAs: "a" })).toEqual(["`tierkv status` says how it is"]);
    const [sidecar] = advice({ ...service, name: "sidecar", runAs: "a" });
    expect(sidecar).toContain("set [sidecar] socket for both");
  });
});

test("without --purge nobody is told that there is no configuration", async () => {
  const { exitCode, stdout } = await run("uninstall", "--user");
  expect([exitCode, existsSync(config)]).toEqual([0, true]);
  expect(stdout).toBe(
    "nothing to remove: no service of tierKV is here; --purge also removes records, secrets and configuration\n",
  );
});

test("a purge takes whole folders of ours, our own files elsewhere, and nothing besides", async () => {
  const data = join(home, "disk");
  const state = join(home, "secrets");
  const vault = `[vault]\ndata_dir = "${data}"\nstate_dir = "${state}"\n`;
  writeFileSync(config, `[cluster]\nrole = "kv_cold"\n${vault}`);
  const gone = [
    write(join(data, "0-1-2.seg")),
    ...["tombstones", "archive.new", "flushes.json"].map((name) => write(join(data, name))),
    ...["members.json", "pool.json", "vaults-kv.json", "weight-b-5.json", "tokens.0a1b2c3d"].map(
      (name) => write(join(state, name)),
    ),
    write(join(home, ".local", "state", "tierkv", "weights.json")),
    config,
  ];
  const kept = [
    write(join(data, "photo.jpg")),
    write(join(state, "id_rsa")),
    write(join(home, ".config", "other")),
  ];
  const dry = await run("uninstall", "--user", "--purge", "--dry-run");
  expect(dry.stdout).toContain("members.json");
  const asked = await run("uninstall", "--user", "--purge");
  expect([asked.exitCode, asked.stderr]).toEqual([2, expect.stringContaining("add --yes")]);
  expect(gone.every((path) => existsSync(path))).toBe(true);
  const { exitCode, stdout } = await run("uninstall", "--user", "--purge", "--yes");
  expect([exitCode, gone.filter((path) => existsSync(path))]).toEqual([0, []]);
  expect(kept.filter((path) => !existsSync(path))).toEqual([]);
  expect(stdout).not.toContain("photo.jpg");
});

test("a purge also takes the sockets' folder below /tmp, where there is no runtime folder", async () => {
  const folder = dirname(ownSocket("sidecar", {}));
  const isOurs = !existsSync(folder);
  if (isOurs) mkdirSync(folder, { mode: 0o700 });
  onTestFinished(() => {
    // Fails where another program has put its socket there.
    if (isOurs) spawnSync("rmdir", [folder]);
  });
  const argv = ["uninstall", "--user", "--purge", "--dry-run", "--config", config];
  const { stdout } = await runInside(argv, { env: { HOME: home } });
  expect(stdout.split("\n")).toContain(folder);
});
