// Owns the directory of one stand: configurations, socket, model and logs, all below one temporary directory.
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
} from "../../base/limits/general.ts";
import { dataText } from "./data.ts";

/** How a sidecar stores attention KV. */
export type Codec = "raw" | "int8";

/** Memory of the kv vault and of each sidecar's arena. */
export interface Memory {
  arenaBytes: number;
  vaultBytes: number;
}

export class Workspace {
  readonly dir: string = mkdtempSync(join(realpathSync(tmpdir()), "tierkv-demo-"));
  readonly logs: string = this.path("logs");
  /** Temporary directory for vLLM. */
  readonly temp: string = this.path("tmp");
  readonly model: string = this.path("model");
  /** The engine's port. */
  readonly port: number;

  private constructor(port: number, { arenaBytes, vaultBytes }: Memory) {
    this.port = port;
    mkdirSync(this.logs);
    mkdirSync(this.temp);
    for (const [of, maxBytes] of [
      ["kv", vaultBytes],
      ["ssm", VAULT_BYTES_MIN],
    ] as const)
      this.#configure(`${of}-vault`, "vault.txt", { class: of, maxBytes });
    for (const codec of ["raw", "int8"])
      this.#configure(codec, "inference.txt", {
        ...LIMITS,
        arenaBytes,
        isInt8: codec === "int8",
        kv: codec === "int8" ? "auto" : codec,
      });
  }

  static async create(memory: Memory = MEMORY): Promise<Workspace> {
    return new Workspace(await freePort(), memory);
  }

  /** Path of a codec's configuration; all name the same socket and vaults. */
  config(codec: Codec = "raw"): string {
    return this.path(`${codec}.toml`);
  }

  /** Socket of its sidecars. */
  get socket(): string {
    return this.path("sidecar.sock");
  }

  path(name: string): string {
    return join(this.dir, name);
  }

  /** Writes a file and returns its path. */
  write(name: string, text: string): string {
    writeFileSync(this.path(name), text, { mode: 0o600 });
    return this.path(name);
  }

  /** Removes all files, or with `isKept` all but logs and configurations, which explain a failure. */
  remove(isKept = false): void {
    for (const path of isKept ? [this.model, this.temp] : [this.dir])
      rmSync(path, { recursive: true, force: true });
  }

  isThere(): boolean {
    return existsSync(this.dir);
  }

  #configure(name: string, from: string, values: Record<string, string | number | boolean>): void {
    this.write(
      `${name}.toml`,
      dataText(`src/extras/stand/data/${from}`, { dir: this.dir, ...values }),
    );
  }
}

const MEMORY: Memory = { arenaBytes: DEMO_ARENA_BYTES, vaultBytes: DEMO_VAULT_BYTES };
const LIMITS = {
  waitMs: DEMO_RESTORE_WAIT_MS,
  stallMs: DEMO_RESTORE_STALL_MS,
} as const;

/** Finds a free port. */
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
