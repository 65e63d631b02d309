// Owns the proof that engines come to a gateway by a real etcd: their sidecar registers them, and who ends is out of it.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { register } from "../../src/discovery/etcd.ts";
import { Program, runProgram } from "../support/command-line.ts";
import { HAS_ETCD, startEtcd } from "../support/etcd.ts";
import { complete } from "../support/gateways.ts";
import { FakeEngine } from "../support/shim-client.ts";
import { testDirectory } from "../support/sidecars.ts";
import { SimEngine } from "../support/sim-engine.ts";
import { closeAfterTest, logger, until } from "../support/vaults.ts";

/** An engine in a process of its own. */
const SERVER = `
const { createServer } = require("node:http");
const server = createServer((asked, answer) => answer.end('{"data":[{"id":"m"}]}'));
server.listen(0, "127.0.0.1", () => console.log(server.address().port));`;

const LEASED_MS = 120_000;

test.skipIf(!HAS_ETCD)(
  "a sidecar registers its engines, a gateway takes them with those that others wrote, and leaves those that ended",
  async () => {
    const etcd = await startEtcd();
    const folder = testDirectory();
    const config = join(folder, "tierkv.toml");
    const sidecarSocket = join(folder, "s.sock");
    writeFileSync(
      config,
      [
        `[cluster]\nkv_cold = "127.0.0.1:1"\n[sidecar]\nsocket = "${sidecarSocket}"`,
        `[etcd]\nendpoints = ["${etcd.endpoint}"]\nengine_host = "127.0.0.1"`,
        `[gateway]\nlisten = "127.0.0.1:0"\nsocket = "${join(folder, "g.sock")}"`,
        `discover = "etcd:engines"\nindex_file = "${join(folder, "index")}"\n`,
      ].join("\n"),
    );
    const server = spawn(process.execPath, ["-e", SERVER], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    onTestFinished(() => void server.kill());
    const [line] = (await once(server.stdout, "data")) as [Buffer];
    const own = `127.0.0.1:${String(line).trim()}`;
    const sidecar = new Program(["sidecar", "--json", "--config", config]);
    onTestFinished(() => sidecar.signal("SIGKILL"));
    await sidecar.firstResult();
    const hello = { pid: server.pid!, events: "tcp://*:5557", replays: "tcp://*:5558" };
    const engine = await FakeEngine.start(sidecarSocket, { hello });
    onTestFinished(() => engine.close());

    const other = await new SimEngine().start();
    onTestFinished(() => other.kill());
    const base = { endpoints: [etcd.endpoint], tls: null, login: null, logger };
    const byHand = { ...base, prefix: "/tierkv/engines/" };
    const silent = register(byHand, other.name, "");
    closeAfterTest(silent);
    closeAfterTest(register(byHand, "no-address", ""));

    const gateway = new Program(["gateway", "--json", "--config", config]);
    onTestFinished(() => gateway.signal("SIGKILL"));
    const { url } = (await gateway.firstResult()) as { url: string };
    const engines = async (): Promise<{ engine: string; events: string | null }[]> => {
      const shown = await runProgram(["gateway", "status", "--json", "--config", config]);
      return (JSON.parse(shown.stdout) as { engines: { engine: string; events: string | null }[] })
        .engines;
    };
    const untilThere = async (...names: string[]): Promise<void> =>
      await until(async () => {
        const now = (await engines()).map((one) => one.engine);
        return now.toSorted().join() === names.toSorted().join();
      }, names.join());
    await untilThere(own, other.name);
    expect((await complete(url, false)).code).toBe(200);
    const events = new Map((await engines()).map((one) => [one.engine, one.events]));
    expect(events.get(other.name)).toBeNull();
    expect(events.get(own)).not.toBeNull();

    // Registered anew before the first registration ends, as a sidecar does where an engine publishes elsewhere.
    closeAfterTest(register(byHand, other.name, JSON.stringify({ events: "127.0.0.1:9" })));
    const isFollowed = async (): Promise<boolean> =>
      (await engines()).some((one) => one.engine === other.name && one.events !== null);
    await until(isFollowed, "the events of an engine that was found without");
    await silent.close();
    await untilThere(own, other.name);
    expect(await isFollowed()).toBe(true);

    // While etcd is away nothing changes, and who ended meanwhile is out of it afterwards.
    etcd.kill("SIGKILL");
    engine.close();
    server.kill();
    await once(server, "exit");
    expect(await engines()).toHaveLength(2);
    etcd.start();
    await untilThere(other.name);
    expect((await complete(url, false)).text).toContain(other.name);
  },
  LEASED_MS,
);

test.skipIf(!HAS_ETCD)("before any engine registers, a gateway serves and says so", async () => {
  const etcd = await startEtcd();
  const folder = testDirectory();
  const config = join(folder, "tierkv.toml");
  writeFileSync(
    config,
    [
      `[etcd]\nendpoints = ["${etcd.endpoint}"]`,
      `[gateway]\nlisten = "127.0.0.1:0"\nsocket = "${join(folder, "g.sock")}"`,
      `discover = "etcd:engines"\nindex_file = "${join(folder, "index")}"\n`,
    ].join("\n"),
  );
  const gateway = new Program(["gateway", "--json", "--config", config]);
  onTestFinished(() => gateway.signal("SIGKILL"));
  const { url } = (await gateway.firstResult()) as { url: string };
  expect((await fetch(`${url}/health`)).status).toBe(503);
  gateway.signal("SIGTERM");
  const { stderr } = await gateway.ended();
  expect(stderr).toContain("no engine is registered in etcd yet");
  expect(stderr).not.toContain("engines cannot be listed");
});
