// Owns real programs that can be killed, paused and restarted, always on the same ports and sockets.
import { randomInt } from "node:crypto";
import { once } from "node:events";
import { mkdirSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { LANES_DEFAULT } from "../../../src/base/limits/general.ts";
import { SidecarLink } from "../../../src/control/sidecar-link.ts";
import type { SidecarStatus } from "../../../src/sidecar/status.ts";
import { Program } from "../../support/command-line.ts";
import type { ProgramOptions } from "../../support/command-line.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, SOON_MS } from "../../support/vaults.ts";

/** Environment and command prefix of the program. */
export type Start = Pick<ProgramOptions, "env" | "under">;

class Killable {
  readonly #args: readonly string[];
  #program: Program;

  protected constructor(command: "sidecar" | "vault", config: string, start: Start) {
    this.#args = [command, "--json", "--config", config];
    this.#program = new Program(this.#args, start);
    closeAfterTest({
      close: async () => {
        // SIGKILL, because a stopped process dies of no other signal.
        this.#program.signal("SIGKILL");
        await this.#program.ended();
      },
    });
  }

  get pid(): number {
    return this.#program.process.pid!;
  }

  /** Log lines since the last start. */
  get log(): Record<string, unknown>[] {
    const lines = this.#program.stderr.split("\n").filter((line) => line.startsWith("{"));
    return lines.flatMap((line) => {
      try {
        return [JSON.parse(line) as Record<string, unknown>];
      } catch {
        // The last line may be incomplete.
        return [];
      }
    });
  }

  /** Rejects with the program's own output when it does not start. */
  async ready(): Promise<void> {
    const { error } = await this.#program.firstResult();
    if (error !== undefined) throw new Error(JSON.stringify(error));
  }

  /** Resolves to the signal it died of. */
  async died(): Promise<NodeJS.Signals | null> {
    await this.#program.ended();
    return this.#program.process.signalCode;
  }

  async kill(): Promise<void> {
    this.#program.signal("SIGKILL");
    await this.#program.ended();
  }

  /** Stops it with SIGTERM; resolves to the exit code. */
  async stop(): Promise<number | null> {
    this.#program.signal("SIGTERM");
    return (await this.#program.ended()).exitCode;
  }

  async startAgain(start: Start = {}): Promise<void> {
    this.#program = new Program(this.#args, start);
    await this.ready();
  }

  pause(): void {
    this.#program.signal("SIGSTOP");
  }

  goOn(): void {
    this.#program.signal("SIGCONT");
  }
}

export interface VaultShape extends Start {
  /** Whether records are written to a disk and answered when durable. */
  isDurable?: boolean;
  dataDir?: string;
  diskBytes?: string;
}

export class KillableVault extends Killable {
  readonly address: string;

  private constructor(address: string, config: string, start: Start) {
    super("vault", config, start);
    this.address = address;
  }

  static async start(shape: VaultShape = {}): Promise<KillableVault> {
    const { isDurable = false, dataDir, diskBytes = "512MiB", ...start } = shape;
    const port = await freePort();
    const folder = testDirectory();
    const config = join(folder, "tierkv.toml");
    const address = `127.0.0.1:${port}`;
    const vault = `insecure_lan = true\nlisten = "${address}"\nmax_bytes = "256MiB"`;
    const disk = `data_dir = "${dataDir ?? join(folder, "data")}"\ndisk_bytes = "${diskBytes}"\ndurability = "sync"`;
    const lines = isDurable ? `${vault}\n${disk}` : vault;
    writeFileSync(config, `[cluster]\nrole = "kv_cold"\n[vault]\n${lines}\n`);
    const killable = new KillableVault(address, config, start);
    await killable.ready();
    return killable;
  }
}

export interface SidecarShape extends Start {
  vault: { address: string };
  lanes?: number;
}

export class KillableSidecar extends Killable {
  readonly socketPath: string;
  /** Folder of its shared memory. */
  readonly arenas: string;

  private constructor(folder: string, config: string, start: Start) {
    super("sidecar", config, start);
    this.socketPath = join(folder, "s.sock");
    this.arenas = join(folder, "arenas");
  }

  static async start(shape: SidecarShape): Promise<KillableSidecar> {
    const { vault, lanes = LANES_DEFAULT, ...start } = shape;
    const folder = testDirectory();
    const config = join(folder, "t.toml");
    const arenas = join(folder, "arenas");
    mkdirSync(arenas, { mode: 0o700 });
    const paths = `socket = "${join(folder, "s.sock")}"\narena_dir = "${arenas}"`;
    writeFileSync(
      config,
      `[cluster]\nrole = "inference"\nkv_cold = "${vault.address}"\n[turbo_quant]\nenabled = false\n` +
        `[sidecar]\n${paths}\narena_bytes = "16MiB"\nlanes = ${lanes}\n` +
        // Always restore, because under faults the cost model would compute and there would be no traffic.
        `[restore]\nwhen = "always"\nwait_ms = 5000\nstall_ms = 1000\n`,
    );
    const killable = new KillableSidecar(folder, config, start);
    await killable.ready();
    return killable;
  }

  async status(): Promise<SidecarStatus> {
    const link = new SidecarLink(this.socketPath);
    try {
      await link.hello(SOON_MS);
      return await link.status(SOON_MS);
    } finally {
      link.close();
    }
  }
}

/** Below the range for outgoing connections (Linux: from 32768), because a dialling socket could take a port there. */
const PORTS = [20_000, 30_000] as const;

/** Returns a port that was free a moment ago and is never assigned automatically. */
async function freePort(): Promise<number> {
  for (;;) {
    const server = createServer().listen(randomInt(...PORTS), "127.0.0.1");
    try {
      await once(server, "listening");
    } catch {
      // The port is taken, so another one is tried.
      continue;
    }
    const { port } = server.address() as AddressInfo;
    server.close();
    await once(server, "close");
    return port;
  }
}
