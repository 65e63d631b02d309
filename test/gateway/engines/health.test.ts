// Owns the proof that an engine that does not answer is told of once each time, also one that never has.
import { once } from "node:events";
import { createServer } from "node:net";
import { expect, onTestFinished, test } from "vitest";
import { splitAddress } from "../../../src/base/hosts.ts";
import { Engine } from "../../../src/gateway/engines/engine.ts";
import { Health } from "../../../src/gateway/engines/health.ts";
import { SILENT, until } from "../../support/gateways.ts";
import { SimEngine } from "../../support/sim-engine.ts";

test("an engine that never answered is told of once, then that it answers, then that it is gone", async () => {
  const sim = await new SimEngine().start();
  const { name } = sim;
  await sim.kill();
  const said: string[] = [];
  const heard = (_what: object, words: string): void => void said.push(words);
  const logger = { ...SILENT, warn: heard, info: heard } as unknown as typeof SILENT;
  const engine = new Engine(name, 1);
  const health = new Health({ engine, logger, onChange: () => {} });
  onTestFinished(async () => {
    await health.close();
    await sim.kill().catch(() => {});
  });
  let tries = 0;
  const mute = createServer((socket) => {
    tries += 1;
    socket.destroy();
  });
  const { host, port } = splitAddress(name);
  await once(mute.listen(port, host), "listening");
  await health.start();
  // Asked again, and again without an answer.
  await until(() => tries > 3);
  expect(said).toEqual(["engine does not answer: requests go to other engines"]);
  mute.close();
  await once(mute, "close");
  await sim.start();
  await until(() => engine.isUp);
  await sim.kill();
  await until(() => !engine.isUp);
  expect(said.slice(1)).toEqual([
    "engine answers",
    "engine does not answer: requests go to other engines",
  ]);
});
