// Owns the test of `[vault] yield_to_user` with a real terminal: somebody types, and the program gives way and comes back.
// @module-tag alone
import { spawn } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { sleep } from "../../../src/base/time.ts";
import { Program } from "../../support/command-line.ts";
import { makeRecords, NAMESPACE } from "../../support/records.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, MIB, openClient, reaches, SOON_MS, until } from "../../support/vaults.ts";

const TICKS_PER_S = 100;
const SERVED_MS_MAX = 120_000;

/** A terminal whose program reads what is typed. */
const TERMINAL = "import pty; pty.spawn(['cat'])";

function memoryBytes(pid: number): number {
  const kib = /^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1];
  return Number(kib) * 1024;
}

function processorS(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]?.split(" ") ?? [];
  return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_S;
}

test.skipIf(!existsSync("/dev/pts/ptmx"))(
  "F89 whoever types at a terminal has the machine, and its memory",
  { timeout: 2 * SERVED_MS_MAX },
  async () => {
    const config = join(testDirectory(), "vault.toml");
    const lines = [
      '[cluster]\nrole = "kv_cold"\n[vault]\ninsecure_lan = true\nlisten = "127.0.0.1:0"',
      'max_bytes = "512MiB"\nyield_to_user = true\nyield_idle_s = 10\nyield_grace_s = 3',
    ];
    writeFileSync(config, `${lines.join("\n")}\n`);
    const program = new Program(["vault", "--json", "--config", config]);
    closeAfterTest({ close: () => program.signal("SIGKILL") });
    const address = String((await program.firstResult())["address"]);
    const pid = program.process.pid!;
    // Somebody, or another program, may be there at the start.
    const served = async (): Promise<void> => {
      const endMs = performance.now() + SERVED_MS_MAX;
      while (!(await reaches(address))) {
        if (performance.now() > endMs) throw new Error(`does not serve: ${program.stderr}`);
        // Asking without a pause would be load of others.
        await sleep(100);
      }
    };
    await served();
    const records = makeRecords(100, { payloadBytes: MIB });
    await openClient({ address }).put(NAMESPACE, records, SOON_MS);
    const full = memoryBytes(pid);

    const typed = spawn("python3", ["-c", TERMINAL], { stdio: ["pipe", "ignore", "ignore"] });
    closeAfterTest({ close: () => typed.kill("SIGKILL") });
    let isTyping = true;
    const typing = (async () => {
      while (isTyping) {
        typed.stdin.write("a\n");
        await sleep(500);
      }
    })();
    await until(async () => !(await reaches(address)), "the vault to be silent");
    await until(() => program.stderr.includes("has freed its memory"), "the memory");
    const [fromS, fromMs] = [processorS(pid), performance.now()];
    await until(() => memoryBytes(pid) < full - 80 * MIB, "the system to have it");
    const share = ((processorS(pid) - fromS) * 1000) / (performance.now() - fromMs);
    process.stdout.write(`memory ${full} > ${memoryBytes(pid)}, processor ${share}\n`);
    isTyping = false;
    await typing;

    await served();
    const stats = await openClient({ address }).stats(SOON_MS);
    expect(stats.records).toBe(0);
    program.signal("SIGTERM");
    expect((await program.ended()).exitCode).toBe(0);
  },
);
