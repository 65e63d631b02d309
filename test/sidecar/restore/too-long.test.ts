// Owns the proof that of a prompt larger than the arena the beginning is restored, reported once, and fits the suggested size.
import { expect, test } from "vitest";
import { createLogger } from "../../../src/base/log.ts";
import { checkConfig } from "../../../src/config/check.ts";
import { findings } from "../../../src/diagnosis/findings.ts";
import type { Seen } from "../../../src/diagnosis/inspect.ts";
import type { Account } from "../../../src/sidecar/trace/decisions.ts";
import { expectNoLeak, openScene, saveAll } from "../../support/scene.ts";
import {
  hashesOf,
  helloFrame,
  makeBlocks,
  makeGroup,
  ShimClient,
} from "../../support/shim-client.ts";
import { MIB } from "../../support/vaults.ts";

const LAYERS = 64;
const PAGE = LAYERS * 4096;
const BLOCKS = 60;
/** 64 slots, a quarter of them for saves. */
const SMALL = 16 * MIB;
const ROOM = 48;
const SHAPE = { groups: [makeGroup({ layers: LAYERS })], maxModelLen: 16 * BLOCKS + 1 };

const { config: CONFIG } = checkConfig("", null, {});

test("the beginning is restored, and log, account, counter and findings say so", async () => {
  const lines: string[] = [];
  const destination = { write: (line: string) => void lines.push(line) };
  const logger = createLogger("test", { level: "warn", tty: false, destination });
  const scene = await openScene({ arenaBytes: SMALL, logger }, SHAPE);
  const { engine, sidecar } = scene;
  const blocks = makeBlocks("long", BLOCKS, PAGE);
  await saveAll(scene, blocks);
  for (let round = 0; round < 2; round += 1) {
    const plan = engine.prefetch(hashesOf(blocks));
    const view = await engine.done(plan);
    expect([view.reason, view.placed.get(0)?.length]).toEqual(["no_slot", ROOM]);
    expect(engine.holds(view, ROOM - 1, blocks[ROOM - 1]!)).toBe(true);
    engine.release(plan);
    await expectNoLeak(scene);
  }
  expect(sidecar.counters.get("plans_beyond_arena")).toBe(2);
  const needed = Math.ceil((BLOCKS * 4) / 3) * PAGE;
  const said = lines.filter((line) => line.includes("shared memory cannot hold"));
  expect(said).toHaveLength(1);
  expect(JSON.parse(said[0]!)).toMatchObject({
    heldTokens: 16 * BLOCKS,
    restoredTokens: 16 * ROOM,
    arenaBytes: needed,
  });
  const client = new ShimClient(sidecar.socketPath);
  client.send(helloFrame({ role: "status" }));
  client.send({ t: "explain", req: "", most: 1 });
  const [account] = (await client.wait("explain_reply"))["accounts"] as Account[];
  client.close();
  expect(account).toMatchObject({
    heldTokens: 16 * BLOCKS,
    roomTokens: 16 * ROOM,
    miss: null,
    placedTokens: 16 * ROOM,
  });
  const [engineStatus] = sidecar.status().engines;
  expect(engineStatus!.arena).toMatchObject({ saveSlots: 16, longestTokens: 16 * ROOM + 15 });
  const found = findings({
    config: CONFIG,
    sidecar: sidecar.status(),
    targets: [],
  } as unknown as Seen);
  const small = found.filter(({ code }) => code === "arena_small");
  expect(small).toMatchObject([{ severity: "note" }]);
  expect(small[0]!.text).toContain(`set [sidecar] arena_bytes = ${needed}`);
});

test("an arena of the size that was named restores all of it", async () => {
  const arenaBytes = Math.ceil((BLOCKS * 4) / 3) * PAGE;
  const scene = await openScene({ arenaBytes }, SHAPE);
  const { engine, sidecar } = scene;
  const blocks = makeBlocks("long", BLOCKS, PAGE);
  await saveAll(scene, blocks);
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect([view.reason, view.placed.get(0)?.length]).toEqual(["complete", BLOCKS]);
  expect(sidecar.counters.get("plans_beyond_arena")).toBe(0);
  const seen = { config: CONFIG, sidecar: sidecar.status(), targets: [] } as unknown as Seen;
  expect(findings(seen).filter(({ code }) => code === "arena_small")).toEqual([]);
});
