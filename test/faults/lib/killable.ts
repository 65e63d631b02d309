// Owns vaults that can be killed, paused and started again: the real program, always on the same ports.
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { Program } from "../../support/command-line.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest } from "../../support/vaults.ts";

export class KillableVault {
  readonly address: string;
  readonly #config: string;
  #program: Program;

  private constructor(address: string, config: string) {
    this.address = address;
    this.#config = config;
    this.#program = this.#launch();
    closeAfterTest({
      close: async () => {
        // A stopped process dies of this signal only.
        this.#program.signal("SIGKILL");
        await this.#program.ended();
      },
    });
  }

  static async start(): Promise<KillableVault> {
    const [port, lanePort] = [await freePort(), await freePort()];
    const config = join(testDirectory(), "tierkv.toml");
    const address = `127.0.0.1:${port}`;
    const vault = `listen = "${address}"\nlane_port = ${lanePort}\nmax_bytes = "64MiB"`;
    writeFileSync(config, `[cluster]\nrole = "kv_cold"\n[vault]\n${vault}\n`);
    const killable = new KillableVault(address, config);
    await killable.#program.firstResult();
    return killable;
  }

  async kill(): Promise<void> {
    this.#program.signal("SIGKILL");
    await this.#program.ended();
  }

  async startAgain(): Promise<void> {
    this.#program = this.#launch();
    await this.#program.firstResult();
  }

  pause(): void {
    this.#program.signal("SIGSTOP");
  }

  goOn(): void {
    this.#program.signal("SIGCONT");
  }

  #launch(): Program {
    return new Program(["vault", "--json", "--config", this.#config]);
  }
}

/** Free a moment ago; nobody else on this machine should want it. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}
