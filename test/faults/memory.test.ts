// Owns the proof that a machine out of memory loses its sidecar or vault, and with it hits, before its engine.
// @module-tag nightly
import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { expect, test } from "vitest";
import { closeAfterTest, until } from "../support/vaults.ts";
import { KillableSidecar, KillableVault } from "./lib/killable.ts";
import { COARSE, Load } from "./lib/load.ts";
import { MemoryGroup } from "./lib/memory-group.ts";
import { testSeed } from "./lib/random.ts";
import { expectEven, FLOOR, openStand, underLoad } from "./lib/stand.ts";

const TEST_MS_MAX = 300_000;
const NO_GROUPS = "needs a memory control group of version 1 that can be divided";
const MIB = 1024 * 1024;
const GROUP_BYTES = 256 * MIB;
const ENGINE_BYTES = 80 * MIB;
/** Engine that holds most of the machine's memory. */
const ENGINE = `
const kept = Buffer.alloc(${ENGINE_BYTES}, 1);
process.on("SIGUSR2", () => console.log("here", kept.length));
setInterval(() => {}, 1000);
console.log("up");
`;
/** Process that takes the last memory; the kernel may kill a second time before that memory is free. */
const HUNGRY = `
const kept = [];
setInterval(() => kept.push(Buffer.alloc(512 * 1024, 1)), 4);
`;
/** Puts it behind the sidecar and before the engine, whatever memory both hold. */
const HUNGRY_RAISE = 400;

/** A script in the group, ended after the test. */
function spawnUnder(group: MemoryGroup, score: number, script: string) {
  const [shell, ...rest] = group.under;
  const scored = ["sh", "-c", `echo ${score} > /proc/$$/oom_score_adj && exec "$@"`, "sh"];
  const child = spawn(shell!, [...rest, ...scored, process.execPath, "-e", script], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const kill = (signal: NodeJS.Signals): boolean => child.kill(signal);
  closeAfterTest({ close: () => kill("SIGKILL") });
  let heard = "";
  child.stdout.on("data", (text: Buffer) => (heard += text.toString()));
  const says = (word: string): Promise<void> =>
    until(() => heard.includes(word), `the process to say "${word}"`);
  return { kill, says };
}

test(
  "F17 memory that runs out ends the vault: misses, and hits again once it is back",
  { timeout: TEST_MS_MAX },
  async ({ skip }) => {
    skip(!MemoryGroup.isPossible(), NO_GROUPS);
    const group = MemoryGroup.make(GROUP_BYTES);
    const vault = await KillableVault.start({ under: group.under });
    const stand = await openStand({ vault, grain: COARSE, chains: 48 });
    let hungry: ReturnType<typeof spawnUnder> | null = null;
    await underLoad(stand, {
      // Killed first by its OOM score, even if it holds less than the vault.
      inject: () => {
        writeFileSync(`/proc/${vault.pid}/oom_score_adj`, "1000");
        hungry = spawnUnder(group, 0, HUNGRY);
      },
      acted: () => group.killed > 0,
      during: async () => {
        expect(await vault.died(), "the kernel's choice").toBe("SIGKILL");
        hungry?.kill("SIGKILL");
      },
      heal: () => vault.startAgain(),
    });
    expect(stand.load.ledger.reasons["vault_down"]).toBeGreaterThan(0);
  },
);

test(
  "F17 memory that runs out ends the sidecar, not the engine beside it, and costs hits only",
  { timeout: TEST_MS_MAX },
  async ({ skip }) => {
    skip(!MemoryGroup.isPossible(), NO_GROUPS);
    const group = MemoryGroup.make(GROUP_BYTES);
    const vault = await KillableVault.start();
    const sidecar = await KillableSidecar.start({ vault, under: group.under });
    const shaped = { seed: testSeed(), chains: 48, grain: COARSE };
    const load = await Load.open(sidecar.socketPath, shaped);
    closeAfterTest({ close: () => load.stop() });
    load.start();
    await load.wholeMore(FLOOR, "before the fault");
    const own = Number(readFileSync("/proc/self/oom_score_adj", "utf8"));
    const its = Number(readFileSync(`/proc/${sidecar.pid}/oom_score_adj`, "utf8"));
    expect(its).toBe(Math.min(1000, own + 1000));

    const engine = spawnUnder(group, own, ENGINE);
    await engine.says("up");
    const hungry = spawnUnder(group, Math.min(1000, own + HUNGRY_RAISE), HUNGRY);
    expect(await sidecar.died(), "the kernel's choice").toBe("SIGKILL");
    await until(() => group.killed > 0, "the kernel to say so (else: void)");
    hungry.kill("SIGKILL");
    engine.kill("SIGUSR2");
    await engine.says("here");
    engine.kill("SIGKILL");

    await sidecar.startAgain();
    await load.again(sidecar.socketPath);
    await load.wholeMore(FLOOR, "after the fault");
    await load.stop();
    expect(load.ledger.wrong).toBe(0);
    await expectEven({ status: () => sidecar.status(), load, vault });
  },
);
