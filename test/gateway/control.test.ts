// Owns the proof that `tierkv gateway drain` takes an engine out and back, by the socket of the gateway.
import { writeFileSync } from "node:fs";
import { join, dirname } from "node:path";
import { expect, test } from "vitest";
import { runInside } from "../support/command-line.ts";
import { complete, gatewayBefore, until } from "../support/gateways.ts";

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

test("without a gateway the command says what to start", async () => {
  const { socket, close } = await gatewayBefore([["m"]]);
  await close();
  const config = join(dirname(socket), "tierkv.toml");
  writeFileSync(config, `[gateway]\nsocket = "${socket}"\n`);
  const { exitCode, stderr } = await runInside(["--config", config, "gateway", "status"]);
  expect(exitCode).toBe(1);
  expect(stderr).toContain("start it with `tierkv gateway` (GATEWAY_DOWN)");
});
