// Owns the proof that an engine's events are followed where it publishes them now, and nowhere once it is said to publish none.
import { once } from "node:events";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { expect, onTestFinished, test, vi } from "vitest";
import { GATEWAY_ENGINES_MAX } from "../../src/base/limits/gateway.ts";
import { askGateway } from "../../src/control/gateway-link.ts";
import type { ShownEngine, ShownFleet } from "../../src/gateway/control.ts";
import type { Publishing } from "../../src/gateway/engines/discovery.ts";
import { Fleet } from "../../src/gateway/engines/fleet.ts";
import { BlockIndex } from "../../src/gateway/index/index-of-blocks.ts";
import { Roster } from "../../src/gateway/roster.ts";
import { gatewayBefore, SILENT, until } from "../support/gateways.ts";
import { SimEngine } from "../support/sim-engine.ts";
import { SimPublisher } from "../support/sim-publisher.ts";

const NOWHERE: Publishing = { events: null, replays: null };

async function publishing(blocks: number): Promise<SimPublisher> {
  const publisher = await new SimPublisher().start();
  onTestFinished(() => publisher.stop());
  await publisher.take(Array.from({ length: blocks * publisher.blockSize }, (_none, at) => at));
  return publisher;
}

function rosterOf(): { roster: Roster; index: BlockIndex } {
  const fleet = new Fleet({ engines: ["a:1"], inFlightMax: 1, waitMs: 1, logger: SILENT });
  const index = new BlockIndex();
  const roster = new Roster({ fleet, index, saved: null, logger: SILENT, onGone: () => {} });
  onTestFinished(async () => {
    await roster.close();
    await fleet.close();
  });
  return { roster, index };
}

test("events are followed from one address to the next, and then nowhere", async () => {
  const { roster } = rosterOf();
  const engine = roster.find("a:1")!;
  const [first, second] = [await publishing(2), await publishing(3)];
  roster.follow(engine, NOWHERE);
  expect(roster.feedOf(engine)).toBeNull();
  roster.follow(engine, first);
  await until(() => roster.blocksOf(engine) === 2);
  roster.follow(engine, second);
  expect(roster.blocksOf(engine)).toBe(0);
  await until(() => roster.blocksOf(engine) === 3);
  expect(roster.feedOf(engine)!.events).toBe(second.events);
  roster.follow(engine, NOWHERE);
  expect([roster.blocksOf(engine), roster.feedOf(engine), roster.agreementOf(engine)]).toEqual([
    0,
    null,
    null,
  ]);
});

test("a replay that breaks off once its engine is not followed any more says nothing of who comes next", async () => {
  const { roster, index } = rosterOf();
  const engine = roster.find("a:1")!;
  const { events } = await publishing(1);
  // It takes the question and never answers.
  const silent = createServer().listen(0, "127.0.0.1");
  await once(silent, "listening");
  onTestFinished(() => void silent.close());
  const { port } = silent.address() as AddressInfo;
  roster.follow(engine, { events, replays: `127.0.0.1:${port}` });
  await until(() => roster.feedOf(engine)!.state === "replaying");
  const trust = vi.spyOn(index, "trust");
  roster.follow(engine, NOWHERE);
  const other = await publishing(1);
  roster.follow(engine, other);
  await until(() => roster.blocksOf(engine) === 1);
  expect(trust.mock.calls.filter(([, isTrusted]) => isTrusted)).toHaveLength(1);
});

test("an engine whose events are told of later is followed then", async () => {
  const engine = await new SimEngine().start();
  onTestFinished(() => engine.kill());
  const publisher = await publishing(2);
  let told = NOWHERE;
  const { socket } = await gatewayBefore([], {}, [], [], undefined, () =>
    Promise.resolve([{ address: engine.name, ...told }]),
  );
  const shown = async (): Promise<Pick<ShownEngine, "events" | "blocks">[]> => {
    const { engines } = (await askGateway(socket, "GET", "/status")) as ShownFleet;
    return engines.map(({ events, blocks }) => ({ events, blocks }));
  };
  expect(await shown()).toEqual([{ events: null, blocks: 0 }]);
  told = { events: publisher.events, replays: publisher.replays };
  await until(async () => (await shown())[0]!.blocks === 2);
  expect(await shown()).toEqual([{ events: "live", blocks: 2 }]);
});

test("before Envoy an engine whose host is a name is left out, and logged once", () => {
  const said: unknown[] = [];
  const warn = (what: unknown): void => void said.push(what);
  const logger = { ...SILENT, warn } as unknown as typeof SILENT;
  const fleet = new Fleet({ engines: [], inFlightMax: 1, waitMs: 1, logger: SILENT });
  onTestFinished(() => fleet.close());
  const options = { fleet, index: new BlockIndex(1), saved: null, logger, onGone: () => {} };
  const roster = new Roster({ ...options, isByNumber: true });
  for (const name of ["vllm-0.svc:8000", "vllm-0.svc:8000", "10.0.0.9:8000", "[fd00::9]:8000"]) {
    roster.add(name);
  }
  expect(fleet.engines.map(({ name }) => name)).toEqual(["10.0.0.9:8000", "[fd00::9]:8000"]);
  const reason = expect.stringContaining("register the engine's IP address") as unknown;
  expect(said).toEqual([{ engine: "vllm-0.svc:8000", reason }]);
  const other = new Roster(options);
  expect(other.objectionTo("vllm-0.svc:8000")).toBeNull();
});

test("each engine beyond the most is left out, and logged once", () => {
  const said: unknown[] = [];
  const warn = (what: unknown): void => void said.push(what);
  const logger = { ...SILENT, warn } as unknown as typeof SILENT;
  const fleet = new Fleet({ engines: [], inFlightMax: 1, waitMs: 1, logger: SILENT });
  const index = new BlockIndex(GATEWAY_ENGINES_MAX);
  const roster = new Roster({ fleet, index, saved: null, logger, onGone: () => {} });
  onTestFinished(() => fleet.close());
  const names = Array.from(
    { length: GATEWAY_ENGINES_MAX + 2 },
    (_none, at) => `127.0.0.1:${at + 1}`,
  );
  for (const name of [...names, ...names]) roster.add(name);
  const beyond = names.slice(GATEWAY_ENGINES_MAX);
  expect(said).toEqual(beyond.map((engine) => ({ engine, most: GATEWAY_ENGINES_MAX })));
});
