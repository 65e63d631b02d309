// Owns the proof that `tierkv gateway drain` takes an engine out and back, by the socket of the gateway.
import { writeFileSync } from "node:fs";
import { join, dirname } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { askGateway } from "../../src/control/gateway-link.ts";
import { Program, runInside } from "../support/command-line.ts";
import { call, complete, gatewayBefore, until } from "../support/gateways.ts";
import { SimPublisher } from "../support/sim-publisher.ts";

test("a drained engine finishes what it has and gets nothing new, until it is taken back", async () => {
  const { engines, url, socket } = await gatewayBefore([["m"], ["m"]]);
  const [first, second] = engines;
  const config = join(dirname(socket), "tierkv.toml");
  writeFileSync(config, `[gateway]\nsocket = "${socket}"\n`);
  const cli = (...argv: string[]): ReturnType<typeof runInside> =>
    runInside(["--config", config, "gateway", ...argv]);
  let open: () => void = () => {};
  first!.gate = new Promise((resolve) => (open = resolve));
  const held = complete(url, false);
  await until(() => first!.asked.length === 1);
  const drained = await cli("drain", first!.name);
  expect(drained.stdout).toContain(`${first!.name}  draining  in flight: 1  models: m`);
  for (let n = 0; n < 3; n += 1) {
    expect((await complete(url, false)).text).toContain(second!.name);
  }
  const whole = cli("drain", first!.name, "--wait");
  open();
  expect((await held).text).toContain(first!.name);
  expect((await whole).stdout).toContain("in flight: 0");
  expect((await cli("undrain", first!.name)).stdout).toContain("  up  ");
  const { stdout } = await cli("status", "--json");
  expect(JSON.parse(stdout)).toMatchObject({
    engines: [{ engine: first!.name, state: "up" }, { engine: second!.name }],
    waiting: 0,
  });
  const unknown = await cli("drain", "10.0.0.1:1");
  expect([unknown.exitCode, unknown.stderr]).toEqual([
    2,
    expect.stringContaining(`no engine 10.0.0.1:1; there are ${first!.name}, ${second!.name}`),
  ]);
});

test("an engine that is down shows whether it is drained, too", async () => {
  const { engines, url, socket } = await gatewayBefore([["m"], ["m"]]);
  const [first] = engines;
  const config = join(dirname(socket), "tierkv.toml");
  writeFileSync(config, `[gateway]\nsocket = "${socket}"\n`);
  const cli = async (...argv: string[]): Promise<string> =>
    (await runInside(["--config", config, "gateway", ...argv])).stdout;
  await first!.kill();
  const isDown = async (): Promise<boolean> => (await cli("status")).includes("  down (");
  await until(async () => {
    await complete(url, false);
    return isDown();
  });
  expect(await cli("status")).not.toContain("draining");
  expect(await cli("drain", first!.name)).toMatch(/ {2}down \(.*\), draining {2}in flight: 0/);
  expect(await cli("undrain", first!.name)).not.toContain("draining");
});

test("a drain that waits says for what, into a pipe, too", async () => {
  const { engines, url, socket } = await gatewayBefore([["m"]]);
  const [engine] = engines;
  const config = join(dirname(socket), "tierkv.toml");
  writeFileSync(config, `[gateway]\nsocket = "${socket}"\n`);
  let open: () => void = () => {};
  engine!.gate = new Promise((resolve) => (open = resolve));
  const held = complete(url, false);
  await until(() => engine!.asked.length === 1);
  const drain = new Program(["gateway", "drain", engine!.name, "--wait", "--config", config]);
  const ended = drain.ended();
  await until(() => drain.stderr.includes(`waiting for 1 request at ${engine!.name}`));
  open();
  await held;
  expect(await ended).toMatchObject({
    exitCode: 0,
    stdout: expect.stringContaining("in flight: 0") as string,
  });
});

test("a gateway that has found no engine yet says so", async () => {
  const { socket } = await gatewayBefore([]);
  await expect(askGateway(socket, "POST", "/drain?engine=10.0.0.1:1")).rejects.toThrow(
    "no engine 10.0.0.1:1; the gateway has none yet",
  );
  const config = join(dirname(socket), "tierkv.toml");
  writeFileSync(config, `[gateway]\nsocket = "${socket}"\n`);
  const { stdout } = await runInside(["--config", config, "gateway", "status"]);
  expect(stdout).toContain("no engine yet: none was named, discovered or registered");
});

test("a path that is no address is answered like any unknown one, and the gateway goes on", async () => {
  const { socket, url } = await gatewayBefore([["m"]]);
  await expect(askGateway(socket, "GET", "//")).rejects.toThrow("one of GET /status");
  expect((await call(url, "/health")).code).toBe(200);
});

test("without a gateway the command says what to start", async () => {
  const { socket, close } = await gatewayBefore([["m"]]);
  await close();
  const config = join(dirname(socket), "tierkv.toml");
  writeFileSync(config, `[gateway]\nsocket = "${socket}"\n`);
  const { exitCode, stderr } = await runInside(["--config", config, "gateway", "status"]);
  expect(exitCode).toBe(1);
  expect(stderr).toContain("start it with `tierkv gateway` (GATEWAY_DOWN)");
});

test("of clients that do not stream, the first token is told once whole answers have shown it", async () => {
  const { url, socket, engines } = await gatewayBefore([["m"]], { preset: "earliest-token" });
  const config = join(dirname(socket), "tierkv.toml");
  writeFileSync(config, `[gateway]\nsocket = "${socket}"\n`);
  engines[0]!.more = { usage: { prompt_tokens: 64, total_tokens: 65, completion_tokens: 1 } };
  const prompt = Array.from({ length: 64 }, (_none, at) => at);
  for (const [id, n] of [
    ["one", 1],
    ["two", 2],
  ] as const) {
    const body = JSON.stringify({ model: "m", prompt, n });
    await call(url, "/v1/completions", { body, headers: { "x-request-id": id } });
  }
  const told = await runInside(["--config", config, "gateway", "explain", "--json"]);
  const { requests } = JSON.parse(told.stdout) as { requests: Record<string, unknown>[] };
  expect(requests.map(({ id, measuredMs }) => [id, Number(measuredMs) > 0])).toEqual([
    ["two", false],
    ["one", true],
  ]);
});

test("an engine's error is not taken for a first token", async () => {
  const { url, socket, engines } = await gatewayBefore([["m"]], { preset: "earliest-token" });
  const config = join(dirname(socket), "tierkv.toml");
  writeFileSync(config, `[gateway]\nsocket = "${socket}"\n`);
  const prompt = Array.from({ length: 64 }, (_none, at) => at);
  const body = JSON.stringify({ model: "m", prompt, stream: true });
  for (const status of [400, 200]) {
    engines[0]!.status = status;
    const answer = await call(url, "/v1/completions", {
      body,
      headers: { "x-request-id": String(status) },
    });
    expect(answer.code).toBe(status);
  }
  const told = await runInside(["--config", config, "gateway", "explain", "--json"]);
  const { requests } = JSON.parse(told.stdout) as { requests: Record<string, unknown>[] };
  expect(requests.map(({ id, measuredMs }) => [id, Number(measuredMs) > 0])).toEqual([
    ["200", true],
    ["400", false],
  ]);
});

test("what was decided for a request is shown by its id, for people and as JSON", async () => {
  const publisher = await new SimPublisher({ blockSize: 16 }).start();
  onTestFinished(() => publisher.stop());
  const preset = "earliest-token";
  const { url, socket, engines } = await gatewayBefore([["m"]], { preset }, [publisher]);
  const config = join(dirname(socket), "tierkv.toml");
  writeFileSync(config, `[gateway]\nsocket = "${socket}"\n`);
  const cli = (...argv: string[]): ReturnType<typeof runInside> =>
    runInside(["--config", config, "gateway", "explain", ...argv]);
  expect((await cli()).exitCode).toBe(1);
  const tokens = Array.from({ length: 64 }, (_none, at) => at);
  const body = JSON.stringify({ model: "m", prompt: tokens, stream: true });
  for (const id of ["chat-1", "chat-2", "other"]) {
    await call(url, "/v1/completions", { body, headers: { "x-request-id": id } });
  }
  const unnamed = await complete(url, false);
  const { exitCode, stdout } = await cli("chat", "--json");
  expect(exitCode).toBe(0);
  const { requests } = JSON.parse(stdout) as { requests: Record<string, unknown>[] };
  expect(requests.map(({ id }) => id)).toEqual(["chat-2", "chat-1"]);
  const { name } = engines[0]!;
  expect(requests[0]).toMatchObject({
    engine: name,
    model: "m",
    tokens: 64,
    reason: "computed",
    candidates: [{ engine: name, held: 0, pulled: 0 }],
  });
  expect(requests[0]!["measuredMs"]).toBeGreaterThan(0);
  const lines = (await cli()).stdout.split("\n");
  const { "x-request-id": given = "none" } = unnamed.headers;
  expect(lines[0]).toMatch(new RegExp(`^${String(given)} \\(m, `));
  expect((await cli(String(given).slice(0, 8))).stdout).toContain(String(given));
  expect(engines[0]!.asked.at(-1)!.headers["x-request-id"]).toBeUndefined();
  expect(lines[1]).toContain(`${name}: load; prompt not known`);
  expect(lines.join("\n")).toContain("own 0, vault 0, computed 64;");
  engines[0]!.heads = { "x-request-id": "of-the-engine" };
  const { headers: theirs } = await complete(url, false);
  expect(theirs["x-request-id"]).toBe("of-the-engine");
  expect((await cli("of-the-engine")).exitCode).toBe(0);
  const missing = await cli("none");
  expect([missing.exitCode, missing.stdout]).toEqual([1, expect.stringContaining('"none"')]);
});

test("of an engine that publishes no events nothing is said to be computed", async () => {
  const { url, socket, engines } = await gatewayBefore([["m"]], { preset: "earliest-token" });
  const config = join(dirname(socket), "tierkv.toml");
  writeFileSync(config, `[gateway]\nsocket = "${socket}"\n`);
  const prompt = Array.from({ length: 64 }, (_none, at) => at);
  const body = JSON.stringify({ model: "m", prompt, stream: true });
  const { headers } = await call(url, "/v1/completions", { body });
  expect([headers["x-tierkv-reason"], headers["x-tierkv-hit-tokens"]]).toEqual(["load", undefined]);
  const { stdout } = await runInside(["--config", config, "gateway", "explain"]);
  expect(stdout).toContain(`${engines[0]!.name}: load; 64 tokens`);
  expect(stdout).toContain("own not known: it publishes no events to the gateway, vault 0;");
});
