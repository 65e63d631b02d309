// Owns the proof that a gateway without engines finds those that the sidecar of its host knows, and keeps those that answer.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { Neighbours } from "../../src/cluster/neighbours.ts";
import { Program, runProgram } from "../support/command-line.ts";
import { complete, SILENT, until } from "../support/gateways.ts";
import { FakeEngine } from "../support/shim-client.ts";
import { openSidecar, testDirectory } from "../support/sidecars.ts";
import { SimEngine } from "../support/sim-engine.ts";
import { SimPublisher } from "../support/sim-publisher.ts";

/** As vLLM: a process that serves HTTP, also on an address that is no engine's, and below it the engine's own. */
const SERVER = `
const { createServer } = require("node:http");
const { spawn } = require("node:child_process");
const other = createServer((_, answer) => answer.writeHead(404).end()).listen(0, "127.0.0.1");
const server = createServer((_, answer) => answer.end('{"data":[{"id":"m"}]}'));
server.listen(0, () => {
  const core = spawn("sleep", ["600"]);
  process.on("SIGTERM", () => { core.kill(); process.exit(); });
  console.log(JSON.stringify({ port: server.address().port, pid: core.pid }));
});`;

test("an engine is found above its own process, stays while it answers, and goes with its server", async () => {
  const { socketPath } = await openSidecar();
  const server = spawn(process.execPath, ["-e", SERVER], { stdio: ["ignore", "pipe", "inherit"] });
  onTestFinished(() => void server.kill());
  const [line] = (await once(server.stdout, "data")) as [Buffer];
  const { port, pid } = JSON.parse(String(line)) as { port: number; pid: number };
  const neighbours = new Neighbours(socketPath, SILENT);
  expect(await neighbours.look()).toEqual([]);
  const hello = { pid, events: "tcp://*:5557", replays: "ipc:///tmp/replays" };
  const engine = await FakeEngine.start(socketPath, { hello });
  const hidden = await FakeEngine.start(socketPath, { engine: "hidden", hello: { pid: 1 } });
  onTestFinished(() => hidden.close());
  // It listens on all addresses, of both families.
  const address = expect.stringMatching(`^(\\[::1\\]|127.0.0.1):${port}\$`) as string;
  const found = [{ address, events: "127.0.0.1:5557", replays: null }];
  expect(await neighbours.look()).toEqual(found);
  engine.close();
  await until(async () => {
    const links = new Neighbours(socketPath, SILENT);
    return (await links.look()).length === 0;
  });
  expect(await neighbours.look()).toEqual(found);
  server.kill();
  await once(server, "exit");
  expect(await neighbours.look()).toEqual([]);
});

test("whoever takes the port of an engine that ended gets no prompts", async () => {
  const { socketPath } = await openSidecar();
  const server = spawn(process.execPath, ["-e", SERVER], { stdio: ["ignore", "pipe", "inherit"] });
  onTestFinished(() => void server.kill());
  const [line] = (await once(server.stdout, "data")) as [Buffer];
  const { port, pid } = JSON.parse(String(line)) as { port: number; pid: number };
  const neighbours = new Neighbours(socketPath, SILENT);
  const engine = await FakeEngine.start(socketPath, { hello: { pid } });
  expect(await neighbours.look()).toHaveLength(1);
  engine.close();
  server.kill();
  await once(server, "exit");
  const stranger = createServer((_asked, answer) => answer.end('{"data":[{"id":"m"}]}'));
  await once(stranger.listen(port), "listening");
  onTestFinished(() => void stranger.close());
  await until(async () => (await neighbours.look()).length === 0);
});

test.each([
  {
    named: "one endpoint, where the gateway begins to hear them",
    ports: [5557, 5557],
    events: "away",
  },
  { named: "two, and neither is the engine's", ports: [5557, 5558], events: null },
])("two ranks behind one server are one engine; they name $named", async ({ ports, events }) => {
  const { socketPath } = await openSidecar();
  const server = await new SimEngine().start();
  const below = spawn("sleep", ["600"]);
  onTestFinished(async () => {
    below.kill();
    await server.kill();
  });
  for (const [rank, engine] of ["dp0", "dp1"].entries()) {
    const hello = { pid: below.pid!, events: `tcp://*:${ports[rank]}` };
    const one = await FakeEngine.start(socketPath, { engine, hello });
    onTestFinished(() => one.close());
  }
  const program = new Program(["gateway", "--json", "--config", configOf(socketPath)]);
  onTestFinished(() => program.signal("SIGKILL"));
  const { url } = (await program.firstResult()) as { url: string };
  await until(async () => (await complete(url, false)).code === 200);
  const shown = await runProgram(["gateway", "status", "--json", "--config", lastConfig]);
  expect(JSON.parse(shown.stdout)).toMatchObject({
    engines: [{ engine: server.name, state: "up", events }],
  });
});

test("`tierkv gateway` without engines serves those of its host, with their events", async () => {
  const { socketPath } = await openSidecar();
  const server = await new SimEngine().start();
  const publisher = await new SimPublisher().start();
  onTestFinished(async () => {
    publisher.stop();
    await server.kill();
  });
  const hello = { events: `tcp://${publisher.events}`, replays: `tcp://${publisher.replays}` };
  const engine = await FakeEngine.start(socketPath, { hello });
  onTestFinished(() => engine.close());
  await publisher.take([1, 2, 3, 4, 5, 6, 7, 8]);
  const program = new Program(["gateway", "--json", "--config", configOf(socketPath)]);
  onTestFinished(() => program.signal("SIGKILL"));
  const { url } = (await program.firstResult()) as { url: string };
  await until(async () => (await complete(url, false)).text.includes(server.name));
  await until(async () => {
    const { stdout } = await runProgram(["gateway", "status", "--config", lastConfig]);
    return stdout.includes("events: live, 2 blocks");
  });
});

test("without a sidecar it says what to start, or which key to set", async () => {
  const config = configOf(join(testDirectory(), "none.sock"));
  const { exitCode, stderr } = await runProgram(["gateway", "--config", config]);
  expect(exitCode).toBe(2);
  expect(stderr).toMatch(/\[gateway\] engines.*none found by this host's sidecar.*write engines/s);
});

let lastConfig = "";

function configOf(sidecar: string): string {
  const folder = testDirectory();
  lastConfig = join(folder, "tierkv.toml");
  const gateway = `[gateway]\nlisten = "127.0.0.1:0"\nsocket = "${join(folder, "g.sock")}"\n`;
  writeFileSync(lastConfig, `${gateway}[sidecar]\nsocket = "${sidecar}"\n`);
  return lastConfig;
}
