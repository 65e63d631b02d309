// Owns the conformance of every place that blocks come from: a vault over lanes, the machine's own vault, and a shared region.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { VaultClient } from "../../src/client/vault/vault-client.ts";
import { damageAll, openShared, regionAddress } from "../support/regions.ts";
import { testDirectory } from "../support/sidecars.ts";
import { describeStore } from "../support/source-suite.ts";
import { startOwnVault, startVaultProcess } from "../support/vault-process.ts";
import { closeAfterTest, openClient, openVault, SOON_MS, until } from "../support/vaults.ts";

/** Long enough to be read where it stands. */
const LENT_PAGE = 65_536;

describeStore("a vault over lanes", async () => {
  const vault = await openVault();
  return { store: openClient(vault), kill: () => vault.close() };
});

describeStore("a vault in another process", async () => {
  const { pid, address } = await startVaultProcess();
  closeAfterTest({ close: () => isThere(pid) && process.kill(pid, "SIGCONT") });
  return {
    store: openClient({ address }),
    async freeze() {
      process.kill(pid, "SIGSTOP");
      await until(() => isStopped(pid), "all threads to stop");
    },
    kill: () => void process.kill(pid, "SIGKILL"),
  };
});

describeStore("the machine's own vault", async () => {
  const vault = await openVault();
  const path = join(testDirectory(), "vault.sock");
  await vault.door(path);
  return { store: openClient({ address: `unix:${path}` }) };
});

describeStore(
  "the machine's own vault, each record read where it stands",
  async () => {
    const vault = await openVault();
    const path = join(testDirectory(), "vault.sock");
    await vault.door(path);
    return { store: await openLent(`unix:${path}`) };
  },
  LENT_PAGE,
);

describeStore(
  "a vault of this machine in another process, each record read where it stands",
  async () => {
    const { pid, address } = await startOwnVault();
    closeAfterTest({ close: () => isThere(pid) && process.kill(pid, "SIGCONT") });
    return {
      store: await openLent(address),
      async freeze() {
        process.kill(pid, "SIGSTOP");
        await until(() => isStopped(pid), "all threads to stop");
      },
      kill: () => void process.kill(pid, "SIGKILL"),
    };
  },
  LENT_PAGE,
);

describeStore("a shared region", async () => {
  const address = regionAddress();
  const store = await openShared(address);
  return { store, damage: () => damageAll(address) };
});

/** A client whose lanes are up, and lend. */
async function openLent(address: string): Promise<VaultClient> {
  const client = openClient({ address });
  await client.hello(SOON_MS);
  await until(() => client.isLent, "lanes that lend");
  return client;
}

/** False once the process has ended. */
function isThere(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

/** True once no thread of the process runs any more; a signal reaches them one after the other. */
function isStopped(pid: number): boolean {
  const tasks = `/proc/${pid}/task`;
  return readdirSync(tasks).every((task) => {
    const stat = readFileSync(`${tasks}/${task}/stat`, "latin1");
    // The state follows the name, which is in brackets.
    return stat.slice(stat.lastIndexOf(")") + 2).startsWith("T");
  });
}
