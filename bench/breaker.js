// Owns the figures of the circuit breaker: time from a vault's death or silence until calls fail at once, and from its return.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { RESTORE_STALL_MS_DEFAULT } from "../dist/base/limits/general.js";
import { createLogger } from "../dist/base/log.js";
import { VaultClient } from "../dist/client/vault/vault-client.js";
import { digest } from "./lib/blocks.js";
import { figure } from "./lib/figures.js";
import { TIERKV } from "./lib/paths.js";
import { freePort } from "./lib/ports.js";

/** Interval of look-ups, which have the default deadline of a sidecar's. */
const EVERY_MS = 20;
const CALL_MS = RESTORE_STALL_MS_DEFAULT;
const POLL_MS = 2;
const PATIENCE_MS = 60_000;
const SILENT_MS = 1000;
const NAMESPACE = digest("bench breaker");
const KEYS = Buffer.alloc(8 * 36);
const OPEN = { on: "value", most: 500 };
const CLOSED = { on: "value", most: 5000 };

export const title = "Circuit breaker: a vault that dies, falls silent, and returns";

export async function run({ isQuick }) {
  const rounds = isQuick ? 3 : 15;
  const address = `127.0.0.1:${await freePort()}`;
  let vault = await startVault(address);
  const logger = createLogger("bench", { level: "silent" });
  const client = new VaultClient({ address, name: "kv", logger });
  const timer = setInterval(
    () => void client.lookup(NAMESPACE, KEYS, CALL_MS).catch(() => {}),
    EVERY_MS,
  );
  const ms = { died: [], returned: [], silent: [], spoke: [] };
  try {
    for (let round = 0; round < rounds; round += 1) {
      await until(() => client.state === "up" && client.lanes === "up");
      vault.kill("SIGKILL");
      ms.died.push(await until(() => client.state === "down"));
      vault = await startVault(address);
      ms.returned.push(await until(() => client.state === "up"));
      await until(() => client.lanes === "up");
      vault.kill("SIGSTOP");
      ms.silent.push(await until(() => client.state === "down"));
      await sleep(SILENT_MS);
      vault.kill("SIGCONT");
      ms.spoke.push(await until(() => client.state === "up"));
    }
    return report(ms);
  } finally {
    clearInterval(timer);
    client.close();
    vault.kill("SIGKILL");
  }
}

function report({ died, returned, silent, spoke }) {
  return {
    figures: [
      figure("kill -9 until the breaker is open", "ms", died, { floor: OPEN }),
      figure("ready again until it is closed", "ms", returned, { floor: CLOSED }),
      figure("stopped without a word until it is open", "ms", silent, { floor: OPEN }),
      figure("going on until it is closed", "ms", spoke, { floor: CLOSED }),
    ],
    notes: [
      `a look-up every ${EVERY_MS} ms, each with ${CALL_MS} ms, the default of [restore] stall_ms`,
    ],
  };
}

/** Returns the milliseconds until `isTrue` holds. */
async function until(isTrue) {
  const startMs = performance.now();
  while (!isTrue()) {
    if (performance.now() - startMs > PATIENCE_MS) throw new Error("the breaker did not move");
    await sleep(POLL_MS);
  }
  return performance.now() - startMs;
}

async function startVault(address) {
  const options = [
    "vault",
    "--json",
    "--role",
    "cold",
    "--listen",
    address,
    "--insecure-lan",
    "--max-bytes",
    "64MiB",
  ];
  const child = spawn(process.execPath, [TIERKV, ...options], {
    stdio: ["ignore", "pipe", "inherit"],
    env: { ...process.env, TIERKV_LOG: "error" },
  });
  await once(child.stdout, "data");
  return child;
}
