// Owns the proof that `tierkv init` writes a configuration which the program takes, and asks or decides what the machine is.
import { existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { delimiter, join } from "node:path";
import { expect, test } from "vitest";
import type { Config } from "../../../src/config/config.ts";
import { loadConfig } from "../../../src/config/load.ts";
import { runInside } from "../../support/command-line.ts";
import type { Outside } from "../../support/command-line.ts";
import { testDirectory } from "../../support/sidecars.ts";

interface Written {
  exitCode: number | null;
  stdout: string;
  stderr: string;
  asked: string[];
  path: string;
}

async function init(argv: readonly string[], outside: Outside = {}): Promise<Written> {
  const path = join(testDirectory(), "tierkv.toml");
  const ran = await runInside(["init", "--output", path, ...argv], outside);
  return { ...ran, path };
}

const read = (path: string): Config => loadConfig(path, {});

test("an engine's machine names no vault, and the next command starts the engine with the file", async () => {
  const { exitCode, stdout, path } = await init(["--machine", "engine"]);
  expect(exitCode).toBe(0);
  expect(read(path)).toMatchObject({ cluster: { role: "inference", kvCold: [] } });
  const [, json = ""] = /--kv-transfer-config \\\n +'([^']+)'/.exec(stdout) ?? [];
  expect(JSON.parse(json)).toMatchObject({
    kv_connector: "TierKVConnector",
    kv_connector_extra_config: { config_path: path },
  });
});

test("a vault listens where other machines reach it, and the next command starts it", async () => {
  const argv = [
    "--machine",
    "vault",
    "--listen",
    "192.168.1.10:50051",
    "--data-dir",
    "/var/lib/t k",
  ];
  const { exitCode, stdout, path } = await init(argv);
  expect(exitCode).toBe(0);
  const { cluster, vault } = read(path);
  expect([cluster.role, vault.listen.text]).toEqual(["cold", "192.168.1.10:50051"]);
  expect(vault.dataDir).toBe("/var/lib/t k");
  expect(stdout).toContain(`tierkv vault --config ${path}`);
  // Root's service of the machine would not see a file below /tmp.
  const flag = process.getuid?.() === 0 ? " --user" : "";
  expect(stdout).toContain(`tierkv service install vault${flag} --config ${path}`);
});

test("a machine of both kinds keeps blocks on a disk, and every commented key is one that the program takes", async () => {
  const { path } = await init(["--machine", "both", "--data-dir", "/srv/tierkv"]);
  expect(read(path)).toMatchObject({
    cluster: { role: "inference" },
    vault: { dataDir: "/srv/tierkv" },
  });
  const text = readFileSync(path, "utf8");
  const open = text.replaceAll(/^# (\w+ = .*)$/gm, "$1");
  expect(open).toMatch(/^max_bytes = "\d+GB"$/m);
  writeFileSync(path, open);
  expect(read(path).cluster.kvCold.map((vault) => vault.text)).toEqual(["192.168.1.10:50051"]);
});

test("without a terminal it says what it took the machine for, and why", async () => {
  const none = await init(["--listen", "10.0.0.1:7"], { env: { PATH: testDirectory() } });
  const hasGpu = ["/dev/nvidiactl", "/dev/kfd"].some((device) => existsSync(device));
  if (!hasGpu) {
    expect(none.stdout).toContain("neither a GPU nor a `vllm` command");
    expect(read(none.path).cluster.role).toBe("cold");
    const bin = testDirectory();
    writeFileSync(join(bin, "vllm"), "");
    const engine = await init([], { env: { PATH: bin } });
    expect(engine.stdout).toContain(`vLLM is installed (${join(bin, "vllm")}): written for`);
    expect(read(engine.path).cluster.role).toBe("inference");
  }
  expect((await init(["--machine", "engine"])).stdout).toMatch(/^wrote /);
});

test("at a terminal it asks, and a wrong answer names the choices", async () => {
  const { asked, path } = await init(["--listen", "10.0.0.1:7"], { answer: "vault" });
  expect(asked).toEqual([expect.stringContaining("engine, vault, both")]);
  expect(read(path).cluster.role).toBe("cold");
  const wrong = await init([], { answer: "toaster" });
  expect([wrong.exitCode, existsSync(wrong.path), wrong.asked.length]).toEqual([2, false, 3]);
  expect(wrong.stderr).toContain("toaster: expected engine, vault, both");
});

test.each([
  [["--machine", "engine", "--listen", "10.0.0.1:7"], "--listen is the address of a vault"],
  [["--machine", "both"], "--machine both needs --data-dir"],
  [["--machine", "vault", "--data-dir", "here"], "--data-dir here: the path must be absolute"],
  [["--machine", "vault", "--listen", "nowhere"], "--listen"],
])("%j is refused by name, and nothing is written", async (argv, says) => {
  const { exitCode, stderr, path } = await init(argv);
  expect([exitCode, existsSync(path)]).toEqual([2, false]);
  expect(stderr).toContain(says);
});

test("the next command works where no shell finds the program by its name", async () => {
  const [bin, other] = [testDirectory(), testDirectory()];
  const script = join(bin, "tierkv");
  const next = async (PATH: string, own = script): Promise<string> => {
    const { stdout, path } = await init(["--machine", "vault"], {
      env: { PATH, TIERKV_COMMAND: own },
    });
    return /^(?:next: )?(\S+) vault --config /m.exec(stdout)?.[1] ?? `none for ${path}`;
  };
  expect(await next(other)).toBe(script);
  writeFileSync(script, "");
  expect(await next(bin)).toBe("tierkv");
  symlinkSync(script, join(other, "tierkv"));
  expect(await next(other)).toBe("tierkv");
  // Another installation comes first on the PATH.
  const second = testDirectory();
  writeFileSync(join(second, "tierkv"), "");
  expect(await next([second, bin].join(delimiter))).toBe(script);
  // The environment that uvx puts on the PATH is gone with its command.
  const cached = join(testDirectory(), "archive-v0", "x", "bin");
  mkdirSync(cached, { recursive: true });
  writeFileSync(join(cached, "tierkv"), "");
  expect(await next(cached, join(cached, "tierkv"))).toBe(join(cached, "tierkv"));
});

test("without --output the file is that of --config", async () => {
  const path = join(testDirectory(), "other.toml");
  const { exitCode } = await runInside(["--config", path, "init", "--machine", "engine"]);
  expect([exitCode, read(path).cluster.role]).toEqual([0, "inference"]);
});

test("a file that is there is left alone", async () => {
  const path = join(testDirectory(), "tierkv.toml");
  writeFileSync(path, "# mine\n");
  const { exitCode, stderr } = await runInside(["init", "--machine", "engine", "--output", path]);
  expect([exitCode, readFileSync(path, "utf8")]).toEqual([2, "# mine\n"]);
  expect(stderr).toContain(`${path} exists: name another file with --output`);
});
