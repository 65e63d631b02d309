// Owns the proof that a machine whose memory runs out loses its sidecar, and with it hits, before its engine.
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { closeAfterTest, until } from "../support/vaults.ts";
import { KillableSidecar, KillableVault } from "./lib/killable.ts";
import { COARSE, Load } from "./lib/load.ts";
import { MemoryGroup, outOfMemoryKills } from "./lib/memory-group.ts";
import { testSeed } from "./lib/random.ts";
import { expectEven, FLOOR } from "./lib/stand.ts";

const TEST_MS_MAX = 120_000;
const MIB = 1024 * 1024;
const GROUP_BYTES = 256 * MIB;
/** Takes memory as an engine does whose batch grows, until the kernel has ended somebody for it. */
const HUNGRY = `
const { readFileSync } = require("node:fs");
const isShort = () => !/^oom_kill 0$/m.test(readFileSync(process.argv[1], "utf8"));
const kept = [];
setInterval(() => {
  if (!isShort()) kept.push(Buffer.alloc(512 * 1024, 1));
}, 4);
process.on("SIGUSR2", () => console.log("here"));
`;

test(
  "F17 memory that runs out ends the sidecar, not the engine beside it, and costs hits only",
  { timeout: TEST_MS_MAX },
  async ({ skip }) => {
    skip(
      !MemoryGroup.isPossible(),
      "needs a memory control group of version 1 that can be divided",
    );
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

    const before = outOfMemoryKills();
    const [shell, ...rest] = group.under;
    const engine = spawn(shell!, [...rest, process.execPath, "-e", HUNGRY, group.kills], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    closeAfterTest({ close: () => engine.kill("SIGKILL") });
    const heard: string[] = [];
    engine.stdout.on("data", (text: Buffer) => heard.push(text.toString()));
    expect(await sidecar.died(), "the kernel's choice").toBe("SIGKILL");
    await until(() => outOfMemoryKills() > before, "the kernel to say so (else: void)");
    engine.kill("SIGUSR2");
    await until(() => heard.join("").includes("here"), "the engine to be there still");
    engine.kill("SIGKILL");

    await sidecar.startAgain();
    await load.again(sidecar.socketPath);
    await load.wholeMore(FLOOR, "after the fault");
    await load.stop();
    expect(load.ledger.wrong).toBe(0);
    await expectEven({ status: () => sidecar.status(), load, vault });
  },
);
