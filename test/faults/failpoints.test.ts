// Owns the proof that a step that fails, waits or crashes at any failpoint of a sidecar costs hits only.
// @module-tag nightly
import { expect, test } from "vitest";
import { FAILPOINTS, FAILPOINTS_VARIABLE } from "../../src/base/failpoint.ts";
import type { Failpoint } from "../../src/base/failpoint.ts";
import { closeAfterTest, until } from "../support/vaults.ts";
import { KillableSidecar, KillableVault } from "./lib/killable.ts";
import { COARSE, Load } from "./lib/load.ts";
import { testSeed } from "./lib/random.ts";
import { expectEven, FLOOR } from "./lib/stand.ts";

const TEST_MS_MAX = 180_000;
const SLEEP_MS = 300;
const FAILURES = 4;
const SLEEPS = 2;
/** Passes before an action, and between actions, enough plans for the floor. */
const BEFORE = 60;
const BETWEEN = 8;
/** Passes per save or restore, where more than one. */
const PASSES: Partial<Record<Failpoint, number>> = {
  "sidecar.save.taken": 3,
  "sidecar.save.encoded": 3,
  "sidecar.save.stored": 3,
  "sidecar.restore.found": 5,
};

function script(name: Failpoint): string {
  const times = PASSES[name] ?? 1;
  const [before, between] = [BEFORE * times, BETWEEN * times];
  const terms = [`${before}*off`, `${FAILURES}*return`, `${between}*off`].concat([
    `${SLEEPS}*sleep(${SLEEP_MS})`,
    `${between}*off`,
    "1*abort",
  ]);
  return `${name}=${terms.join("->")}`;
}

interface Scene {
  vault: KillableVault;
  sidecar: KillableSidecar;
  load: Load;
}

async function openScene(name: Failpoint): Promise<Scene> {
  const vault = await KillableVault.start({});
  const env = { [FAILPOINTS_VARIABLE]: script(name) };
  const sidecar = await KillableSidecar.start({ vault, env });
  const shaped = { seed: testSeed(), chains: 48, freshEvery: 2, grain: COARSE };
  const load = await Load.open(sidecar.socketPath, shaped);
  closeAfterTest({ close: () => load.stop() });
  return { vault, sidecar, load };
}

/** Waits until the failpoint has acted; returns the number of whole plans by then. */
async function acted({ sidecar, load }: Scene, name: Failpoint, action: string): Promise<number> {
  const isIt = (line: Record<string, unknown>): boolean =>
    line["failpoint"] === name && line["action"] === action;
  await until(() => sidecar.log.some(isIt), `${name} to ${action} (else: void)`);
  return load.ledger.whole;
}

test.each(Object.keys(FAILPOINTS) as Failpoint[])(
  "failpoint %s: fails, waits, crashes",
  { timeout: TEST_MS_MAX },
  async (name) => {
    const scene = await openScene(name);
    const { vault, sidecar, load } = scene;
    load.start();
    expect(await acted(scene, name, "return"), "whole restores before").toBeGreaterThan(FLOOR);
    await acted(scene, name, "sleep");
    await acted(scene, name, "abort");
    expect(await sidecar.died()).toBe("SIGKILL");
    await sidecar.startAgain();
    await load.again(sidecar.socketPath);
    const restored = async (): Promise<number> =>
      (await sidecar.status()).counters["blocks_restored_vault"] ?? 0;
    const atStart = await restored();
    await load.wholeMore(FLOOR, "after the crash");
    await until(async () => (await restored()) > atStart + FLOOR, "restores from the vault");
    await load.stop();
    expect(load.ledger.wrong).toBe(0);
    await expectEven({ status: () => sidecar.status(), load, vault });
  },
);
