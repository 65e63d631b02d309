// Owns the directory of one demo run: configurations, socket, model and logs, all below one temporary directory.
import { existsSync, mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  DEMO_ARENA_BYTES,
  DEMO_RESTORE_STALL_MS,
  DEMO_RESTORE_WAIT_MS,
  DEMO_VAULT_BYTES,
  VAULT_BYTES_MIN,
} from "../limits.ts";

/** How a sidecar stores attention KV. */
export type Codec = "raw" | "int8";

const CONFIG: Readonly<Record<Codec, string>> = { raw: "tierkv.toml", int8: "tierkv-int8.toml" };

export class Workspace {
  readonly dir: string;
  /** Where the engine answers. */
  readonly port: number;

  private constructor(dir: string, port: number) {
    this.dir = dir;
    this.port = port;
    mkdirSync(this.logs);
    mkdirSync(this.temp);
    const kv = `unix:${this.path("kv.sock")}`;
    const ssm = `unix:${this.path("ssm.sock")}`;
    this.#write("kv-vault.toml", vaultConfig("kv_cold", kv, DEMO_VAULT_BYTES));
    this.#write("ssm-vault.toml", vaultConfig("ssm_cold", ssm, VAULT_BYTES_MIN));
    for (const codec of ["raw", "int8"] as const) {
      this.#write(CONFIG[codec], inferenceConfig(kv, ssm, this.socket, codec));
    }
  }

  static async create(): Promise<Workspace> {
    const port = await freePort();
    return new Workspace(mkdtempSync(join(realpathSync(tmpdir()), "tierkv-demo-")), port);
  }

  get logs(): string {
    return this.path("logs");
  }

  /** For what vLLM drops into a temporary directory. */
  get temp(): string {
    return this.path("tmp");
  }

  get model(): string {
    return this.path("model");
  }

  get socket(): string {
    return this.path("sidecar.sock");
  }

  /** The configuration of the engine's machine; both name the same socket and the same vaults. */
  config(codec: Codec = "raw"): string {
    return this.path(CONFIG[codec]);
  }

  path(name: string): string {
    return join(this.dir, name);
  }

  log(name: string): string {
    return join(this.logs, `${name.replaceAll(" ", "-")}.log`);
  }

  remove(): void {
    rmSync(this.dir, { recursive: true, force: true });
  }

  /** Keeps what explains a failure: logs and configurations. */
  removeBulk(): void {
    for (const path of [this.model, this.temp, this.socket])
      rmSync(path, { recursive: true, force: true });
  }

  isThere(): boolean {
    return existsSync(this.dir);
  }

  #write(name: string, text: string): void {
    writeFileSync(this.path(name), text, { mode: 0o600 });
  }
}

function vaultConfig(role: string, listen: string, maxBytes: number): string {
  return `[cluster]\nrole = "${role}"\n\n[vault]\nlisten = "${listen}"\nmax_bytes = ${maxBytes}\n`;
}

function inferenceConfig(kv: string, ssm: string, socket: string, codec: Codec): string {
  const cluster = `[cluster]\nrole = "inference"\nkv_cold = "${kv}"\nssm_cold = "${ssm}"\n`;
  const sidecar = `[sidecar]\nsocket = ${JSON.stringify(socket)}\narena_bytes = ${DEMO_ARENA_BYTES}\nautostart = false\n`;
  const waits = `wait_ms = ${DEMO_RESTORE_WAIT_MS}\nstall_ms = ${DEMO_RESTORE_STALL_MS}\nwhen = "always"\n`;
  const turboQuant = `[turbo_quant]\nenabled = ${codec === "int8"}\n`;
  return `${cluster}\n${turboQuant}\n${sidecar}\n[restore]\n${waits}`;
}

/** A port nobody listens on. */
function freePort(): Promise<number> {
  const server = createServer();
  return new Promise<number>((resolve, reject) => {
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address() as AddressInfo;
      server.close(() => resolve(port));
    });
  });
}
