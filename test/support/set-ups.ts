// Owns a set-up of one vault, one sidecar and its configuration, to be looked at as commands do.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { loadConfig } from "../../src/config/load.ts";
import { inspect } from "../../src/diagnosis/inspect.ts";
import type { Seen } from "../../src/diagnosis/inspect.ts";
import { openSidecar, testDirectory } from "./sidecars.ts";
import { openClient, openVault } from "./vaults.ts";

/** Writes a configuration of a sidecar whose KV vault is at `address`. */
export function configOf(address: string, socket: string): string {
  const path = join(testDirectory(), "tierkv.toml");
  writeFileSync(path, `[cluster]\nkv_cold = "${address}"\n[sidecar]\nsocket = "${socket}"\n`);
  return path;
}

export async function openSetUp(): Promise<{
  path: string;
  look: () => Promise<Seen>;
}> {
  const vault = await openVault();
  const kv = openClient(vault);
  const { socketPath } = await openSidecar({ vaults: { kv, ssm: null } });
  const path = configOf(vault.address, socketPath);
  return { path, look: () => inspect(loadConfig(path, {})) };
}
