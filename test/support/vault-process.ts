// Owns vaults as separate processes, small and without credentials, for measurements from outside.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { Program } from "./command-line.ts";
import { testDirectory } from "./sidecars.ts";
import { closeAfterTest, MIB } from "./vaults.ts";

export const VAULT_BYTES: number = 64 * MIB;

export interface Place {
  readonly pid: number;
  readonly address: string;
  readonly host: string;
  readonly port: number;
}

/** `port`: an earlier vault's; 0: any. `dataDir`: keeps its records. `clockMs`: lead of its wall clock. It knows no flushes of other vaults. */
export async function startVaultProcess(
  port = 0,
  at = "127.0.0.1",
  {
    bytes = VAULT_BYTES,
    dataDir = "",
    clockMs = 0,
  }: { bytes?: number; dataDir?: string; clockMs?: number } = {},
): Promise<Place> {
  const started = await start(`${at}:${port}`, { bytes, dataDir, clockMs });
  const [host = "", own] = started.address.split(":");
  return { ...started, host, port: Number(own) };
}

/** A vault of this user on a socket of its own, or on that of an earlier one. */
export async function startOwnVault(
  address = `unix:${join(testDirectory(), "vault.sock")}`,
  { bytes = VAULT_BYTES, dataDir = "" }: { bytes?: number; dataDir?: string } = {},
): Promise<{ pid: number; address: string }> {
  return await start(address, { bytes, dataDir, clockMs: 0 });
}

async function start(
  listen: string,
  { bytes, dataDir, clockMs }: { bytes: number; dataDir: string; clockMs: number },
): Promise<{ pid: number; address: string }> {
  const folder = testDirectory();
  const config = join(folder, "vault.toml");
  const disk = dataDir === "" ? "" : `data_dir = "${dataDir}"\ndisk_bytes = "256MiB"\n`;
  const text = `[cluster]\nrole = "kv_cold"\n[vault]\ninsecure_lan = true\nlisten = "${listen}"\nmax_bytes = "${bytes / MIB}MiB"\nstate_dir = "${folder}"\n${disk}`;
  writeFileSync(config, text);
  const ahead = `data:text/javascript,const%20now=Date.now;Date.now=()=>now()+(${clockMs})`;
  const env = clockMs === 0 ? {} : { NODE_OPTIONS: `--import=${ahead}` };
  const program = new Program(["vault", "--json", "--config", config], { env });
  closeAfterTest({ close: () => program.signal("SIGKILL") });
  const address = String((await program.firstResult())["address"]);
  return { pid: program.process.pid!, address };
}
