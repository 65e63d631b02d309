// Owns the rehearsal of an operator's bad days with real programs on this machine: what he sees, types, and sees afterwards; docs/how-to/runbook.md is made of it.
// @module-tag nightly
import {
  closeSync,
  cpSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { silent } from "../../src/base/log.ts";
import type { VaultClient } from "../../src/client/vault/vault-client.ts";
import { securityFor } from "../../src/cluster/credentials.ts";
import { allTargets, targetAt } from "../../src/cluster/sources.ts";
import { loadConfig } from "../../src/config/load.ts";
import { underSmallDisk } from "../support/circumstances.ts";
import { Program, runProgram } from "../support/command-line.ts";
import { makeRecords, NAMESPACE } from "../support/records.ts";
import { testDirectory } from "../support/sidecars.ts";
import { openClient, SOON_MS, until } from "../support/vaults.ts";

const TEST_MS_MAX = 600_000;
const RECORDS = 200;
const MODEL = "Qwen/Qwen3-30B-A3B";
/** What a vault with an archive consists of; a flush empties all of it. */
const BACKED_UP = ["data0", "state0", "archive"];
/** Size of a disk that becomes full; a vault keeps records only where others may not write. */
const DISK = "80M,mode=700";
/** Place of the second vault's records, on a disk of its own. */
const DATA_1 = ["disk1", "data"];

/** One row of the runbook. */
interface Row {
  fault: string;
  sees: string;
  types: string;
  afterwards: string;
}

interface Seen {
  exitCode: number | null;
  text: string;
}

interface Target {
  target: string;
  address: string;
  reachable: boolean;
  records: number | null;
  disk: { records: number } | null;
}

/** A machine with an engine's sidecar, and two vaults that it has joined. */
class Site {
  readonly dir = testDirectory();
  readonly ports: readonly [number, number];
  readonly #programs = new Map<string, Program>();

  constructor(first: number) {
    this.ports = [first, first + 1];
    for (const name of ["archive", "disk1"]) mkdirSync(join(this.dir, name));
    for (const [at, port] of this.ports.entries()) this.#write(at, port);
    const all = this.ports.map((port) => `"127.0.0.1:${port}"`).join(", ");
    const engine = `[cluster]\nkv_cold = [${all}]\ncredentials = "${this.path("joined")}"\n[sidecar]\nsocket = "${this.path("s.sock")}"\n`;
    writeFileSync(this.path("engine.toml"), engine);
  }

  path(...parts: string[]): string {
    return join(this.dir, ...parts);
  }

  address(vault: number): string {
    return `127.0.0.1:${this.ports[vault]}`;
  }

  #write(at: number, port: number): void {
    const [data, state] = [this.path(...(at === 0 ? ["data0"] : DATA_1)), this.path(`state${at}`)];
    const archive =
      at === 0 ? `archive = "file://${this.path("archive")}"\narchive_after_s = 1\n` : "";
    const text = `[cluster]\nrole = "kv_cold"\n[vault]\nlisten = "127.0.0.1:${port}"\nmax_bytes = "64MiB"\ndisk_bytes = "64MiB"\ndata_dir = "${data}"\nstate_dir = "${state}"\n${archive}`;
    writeFileSync(this.path(`vault${at}.toml`), text);
  }

  async start(name: string, command: string, under: readonly string[] = []): Promise<void> {
    const argv = [command, "--json", "--config", this.path(`${name}.toml`)];
    const program = new Program(argv, { under });
    this.#programs.set(name, program);
    onTestFinished(() => program.signal("SIGKILL"));
    expect(await program.firstResult()).not.toHaveProperty("error");
  }

  async stop(name: string, signal: "SIGTERM" | "SIGKILL"): Promise<void> {
    const program = this.#programs.get(name)!;
    program.signal(signal);
    await program.ended();
  }

  signal(name: string, signal: "SIGSTOP" | "SIGCONT"): void {
    this.#programs.get(name)!.signal(signal);
  }

  /** Fills the file system that a program sees at `dir`; returns what makes room again. */
  fillUp(name: string, dir: string): () => void {
    const { pid } = this.#programs.get(name)!.process;
    const ballast = join(`/proc/${pid}/root`, dir, "ballast");
    const file = openSync(ballast, "w");
    try {
      for (;;) writeSync(file, Buffer.alloc(4096));
    } catch (error) {
      expect(error).toMatchObject({ code: "ENOSPC" });
    }
    closeSync(file);
    return () => rmSync(ballast);
  }

  /** The problem of this kind that `tierkv status` reports, once it does. */
  async problem(of: string): Promise<string> {
    let found: string | undefined;
    await until(async () => {
      const { text } = await this.run(["status"]);
      found = text.split("\n").find((line) => line.startsWith("PROBLEM") && line.includes(of));
      return found !== undefined;
    }, `a problem with ${of}`);
    return this.plain(found ?? "");
  }

  /** Runs a command as the engine's machine, or as a vault's. */
  async run(argv: readonly string[], at = "engine"): Promise<Seen> {
    const { exitCode, stdout, stderr } = await runProgram([
      ...argv,
      "--config",
      this.path(`${at}.toml`),
    ]);
    return { exitCode, text: stdout + stderr };
  }

  async invite(vault: number): Promise<void> {
    const { text } = await this.run(["invite"], `vault${vault}`);
    const code = /tierkv join (\S+)/.exec(text)?.[1] ?? "";
    expect((await this.run(["join", code])).text).toContain("joined the kv vault");
  }

  async targets(): Promise<Target[]> {
    const { text } = await this.run(["status", "--json"]);
    return (JSON.parse(text.split("\n")[0]!) as { targets: Target[] }).targets;
  }

  /** Records that a vault can serve, on its disk or in its archive. */
  async records(vault: number): Promise<number> {
    const found = (await this.targets()).find(({ address }) => address === this.address(vault));
    return Math.max(found?.records ?? 0, found?.disk?.records ?? 0);
  }

  /** Waits until a vault serves all records again, and nothing is reported. */
  async isWhole(vault: number): Promise<void> {
    await this.isWell();
    await until(async () => (await this.records(vault)) === RECORDS, "all records");
  }

  async isWell(): Promise<void> {
    let said = "";
    const isWell = async (): Promise<boolean> => {
      const { exitCode, text } = await this.run(["status"]);
      said = text;
      return exitCode === 0;
    };
    await until(isWell, "status without a problem").catch((error: unknown) => {
      throw new Error(said, { cause: error });
    });
  }

  /** Stores records for a model, as a sidecar does. */
  async store(vault: number): Promise<VaultClient> {
    const config = loadConfig(this.path("engine.toml"), {});
    const target = targetAt(await allTargets(config), this.address(vault));
    const security = securityFor(config, target, silent);
    const client = openClient(target, "kv", security === null ? {} : { security });
    await client.hello(SOON_MS);
    await client.nameModel(NAMESPACE, MODEL, SOON_MS);
    await client.put(NAMESPACE, makeRecords(RECORDS), SOON_MS);
    return client;
  }

  /** Stores records until the vault has them on its disk. */
  async fill(vault: number): Promise<void> {
    const client = await this.store(vault);
    await until(
      async () => (await client.stats(SOON_MS)).disk?.durableRecords === RECORDS,
      "all durable",
    );
  }

  /** The line of a text that begins with this word, without this run's places. */
  line(text: string, begins: string): string {
    const found = text.split("\n").find((line) => line.startsWith(begins));
    expect(found, `${begins} in ${text}`).toBeDefined();
    return this.plain(found!);
  }

  plain(text: string): string {
    return text
      .replaceAll(this.address(0), "A:50051")
      .replaceAll(this.address(1), "B:50051")
      .replaceAll(`port ${this.ports[0]}`, "port 50051")
      .replaceAll(`port ${this.ports[1]}`, "port 50051")
      .replaceAll(this.dir, "")
      .replaceAll(hostname(), "gpu-box")
      .replaceAll(/[\d.]+ k?B freed, [\d.]+ [kM]?B on disk/g, "N B freed, N B on disk");
  }
}

/** What a machine without its network looks like; not rehearsed on the loopback, and held to the program's text. */
const GONE = "open TCP port ${port} in the firewalls on the way, or start that machine";

const rows: Row[] = [];
const note = (fault: string, sees: string, types: string, afterwards: string): void => {
  rows.push({ fault, sees, types, afterwards });
};
const code = (text: string): string => `\`${text.replaceAll("|", "\\|").replaceAll("`", "'")}\``;
const WHOLE = "100 % of its records are there";

test.skipIf(underSmallDisk("/tmp") === null)(
  "a day of faults, each seen, mended and seen again",
  async () => {
    const site = new Site(21_000 + (process.pid % 10_000) * 2);
    await site.start("vault0", "vault");
    await site.start("vault1", "vault");
    await site.invite(0);
    await site.invite(1);
    await site.start("engine", "sidecar");
    await site.fill(0);
    await site.isWell();

    // A vault's process dies.
    await site.stop("vault0", "SIGKILL");
    let sees = site.line((await site.run(["status"])).text, "PROBLEM");
    await site.start("vault0", "vault");
    await site.isWhole(0);
    note(
      "a vault's process was killed",
      sees,
      "start it again (`systemctl start tierkv-vault`)",
      `no problem in \`tierkv status\`; ${WHOLE}`,
    );

    // A disk is lost, and the archive has what was on it.
    await until(async () => {
      const { text } = await site.run(["status"]);
      return text.includes(", 0 B of closed segments to go there");
    }, "all segments in the archive");
    await site.stop("vault0", "SIGKILL");
    rmSync(site.path("data0"), { recursive: true });
    await site.start("vault0", "vault");
    await site.isWhole(0);
    note(
      "a vault's disk is lost, with `[vault] archive`",
      "the vault's process ends, or `PROBLEM: ... its disk takes no more records`",
      "stop the vault if it still runs, put in an empty disk, and start the vault",
      `${WHOLE}, except those of the last \`archive_after_s\` (300 s) before the loss, which had not gone to the archive`,
    );

    // Back-up: the vault is stopped, and its folders are copied.
    await site.stop("vault0", "SIGTERM");
    for (const name of BACKED_UP)
      cpSync(site.path(name), site.path("backup", name), { recursive: true });
    await site.start("vault0", "vault");

    // A wrong name, then the wrong model.
    const wrong = await site.run(["flush", "--yes", "--model", "Qwen3-30B"], "vault0");
    expect(wrong.exitCode).toBe(1);
    expect(await site.records(0)).toBe(RECORDS);
    note(
      "a model is to be flushed, and its name is wrong",
      site.line(wrong.text, "no vault knows"),
      `on the vault's machine \`tierkv flush --model ${MODEL}\``,
      "nothing was dropped by the wrong name",
    );
    const flushed = await site.run(["flush", "--yes", "--model", MODEL], "vault0");
    sees = site.line(flushed.text, "kv_cold at 127.0.0.1");
    await until(async () => (await site.records(0)) === 0, "the flush");
    await site.stop("vault0", "SIGTERM");
    for (const name of BACKED_UP) {
      rmSync(site.path(name), { recursive: true });
      cpSync(site.path("backup", name), site.path(name), { recursive: true });
    }
    await site.start("vault0", "vault");
    await site.isWhole(0);
    note(
      "the wrong model was flushed",
      sees,
      "nothing: engines compute the prompts again. Or restore the back-up: stop the vault, put back its folders and the archive's content, and start it; of a pool with `pool_key` stop all vaults first, and put back each, as one alone hears of the flush from the others and repeats it",
      `${WHOLE}; no machine has to join again`,
    );

    // The archive cannot be written.
    const archive = site.path("archive");
    renameSync(archive, `${archive}.away`);
    writeFileSync(archive, "");
    await site.stop("vault0", "SIGTERM");
    const refused = new Program(["vault", "--json", "--config", site.path("vault0.toml")]);
    const { exitCode, stderr } = await refused.ended();
    expect(exitCode).not.toBe(0);
    const fatal = JSON.parse(stderr.trimEnd().split("\n").at(-1)!) as { msg: string };
    rmSync(archive);
    renameSync(`${archive}.away`, archive);
    await site.start("vault0", "vault");
    await site.isWhole(0);
    note(
      "a file lies where the archive's folder was (an empty folder, as of a disk that is not mounted: the vault starts, and `status` says that its archive fails)",
      site.plain(fatal.msg),
      "mount the archive there, and start the vault",
      `no problem in \`tierkv status\`; ${WHOLE}`,
    );

    // The archive's disk is full: the vault's copies find no room there.
    await site.stop("vault0", "SIGTERM");
    rmSync(site.path("data0"), { recursive: true });
    await site.start("vault0", "vault", underSmallDisk(archive, DISK) ?? []);
    let makeRoom = site.fillUp("vault0", archive);
    await site.fill(0);
    sees = await site.problem("archive");
    makeRoom();
    await site.isWhole(0);
    note(
      "the archive is full (a bucket over its quota, a full disk)",
      sees,
      "make room there: the vault tries again by itself. Or set `[vault] archive_bytes` (and `disk_bytes`, if it is set) below its size and restart the vault: the oldest files of records go, in the archive and on the disk, which keeps no more than the archive (a file has up to 134 MB, and one larger than the new size always goes)",
      `no problem in \`tierkv status\`; with room made, ${WHOLE}`,
    );

    // A vault's disk is full.
    await site.stop("vault1", "SIGTERM");
    await site.start("vault1", "vault", underSmallDisk(site.path("disk1"), DISK) ?? []);
    makeRoom = site.fillUp("vault1", site.path("disk1"));
    await site.store(1);
    sees = await site.problem("disk");
    makeRoom();
    await site.store(1);
    await site.isWell();
    note(
      "a vault's disk is full",
      sees,
      "make room there, or set `[vault] disk_bytes` below what is free; the vault tries again by itself",
      "no problem in `tierkv status`; meanwhile memory served",
    );

    // A vault hangs.
    site.signal("vault1", "SIGSTOP");
    sees = await site.problem(site.address(1));
    site.signal("vault1", "SIGCONT");
    await site.isWell();
    note(
      "a vault hangs, or a firewall or proxy on the way takes its connections",
      sees,
      "end or mend what hangs; firewalls must let the port through",
      "no problem in `tierkv status`, without a restart",
    );

    // A sidecar dies.
    await site.stop("engine", "SIGKILL");
    sees = await site.problem("sidecar");
    await site.start("engine", "sidecar");
    await site.isWell();
    note(
      "a sidecar was killed",
      `${sees}; in Prometheus the alert [TierkvProcessDown](alerts.md#tierkvprocessdown)`,
      "start it again (`systemctl --user start tierkv-sidecar`); an engine starts it by itself, unless `[sidecar] autostart` is `false`",
      "no problem in `tierkv status`; engines connect by themselves",
    );

    // A token leaks.
    expect((await site.run(["revoke", hostname()], "vault1")).exitCode).toBe(0);
    await until(async () => (await site.run(["status"])).text.includes("PROBLEM"), "the refusal");
    sees = site.line((await site.run(["status"])).text, "PROBLEM");
    await site.invite(1);
    await site.isWell();
    note(
      "a machine's token leaked",
      "`tierkv peers` on the vault's machine lists machines with their last contact",
      "there run `tierkv revoke gpu-box`, then `tierkv invite`; on gpu-box run the printed line",
      `in between: ${code(sees)}; then no problem, without a restart of the sidecar`,
    );

    // A vault's host is lost for good.
    await site.stop("vault1", "SIGKILL");
    rmSync(site.path("state1"), { recursive: true });
    sees = site.line((await site.run(["status"])).text, "PROBLEM");
    expect((await site.run(["vaults", "remove", site.address(1)])).exitCode).toBe(0);
    await site.stop("engine", "SIGTERM");
    await site.start("engine", "sidecar");
    await site.isWhole(0);
    note(
      "the network to a vault is cut, or its host is lost",
      `\`PROBLEM: kv vault at B:50051 does not answer: no answer: no connection to port 50051 (ETIMEDOUT); ${GONE.replace("${port}", "50051")}\`; if only the program ended, ${code(sees)}`,
      "mend the network: nothing else is to be done. If the host is gone for good, on each engine's machine: `tierkv vaults remove B:50051`, and start the sidecar again. In a pool with `pool_key` that command needs a join with `--role admin` (`tierkv invite --role admin`), and once, on one machine, is enough: sidecars follow the pool's list",
      'no problem; what it held is computed again, or with `redundancy = "copies:2"` read from its copy, and a note where one vault is left',
    );

    const reach = readFileSync(new URL("../../src/diagnosis/reach.ts", import.meta.url), "utf8");
    expect(reach).toContain(GONE);
    console.log(
      `game day ${JSON.stringify({ faults: rows.length, records: RECORDS, failures: 0 })}`,
    );
    const table = rows.map(
      (row) =>
        `| ${row.fault} | ${isCommand(row.sees) ? row.sees : code(row.sees)} | ${row.types} | ${row.afterwards} |`,
    );
    await expect(`${HEAD}${table.join("\n")}\n${TAIL}`).toMatchFileSnapshot(
      "../../docs/how-to/runbook.md",
    );
  },
  TEST_MS_MAX,
);

const isCommand = (text: string): boolean => text.includes("`");

const HEAD = `# Bad days

Requests are answered during all of these faults; at worst, engines compute their prompts. Each row below was rehearsed with real programs
(\`npm run test:long -- --only game-day\`, which also renews this page); \`A\` and \`B\` are vaults, \`gpu-box\` is the engine's machine. [Alerts](alerts.md) have a page of their own,
injected faults [another](../faults.md).

| fault | what you see | what to do | afterwards |
|---|---|---|---|
`;

const TAIL = `
## Back-up and restore of a vault

A vault is two folders: \`[vault] data_dir\` (records, names of models, flushes) and \`state_dir\` (certificate, key, machines that have joined; secret). A service has both in \`/var/lib/tierkv\`, which systemd makes a link to
another folder. The \`/.\` below copies what the link leads to.

\`\`\`
systemctl stop tierkv-vault
mkdir -p -m 700 /backup/tierkv
cp -a /var/lib/tierkv/. /backup/tierkv/          # or a snapshot of the file system
systemctl start tierkv-vault
\`\`\`

- **To restore**, stop the vault, replace the content of both folders by that of the back-up (\`rm -r /var/lib/tierkv/*; cp -a /backup/tierkv/. /var/lib/tierkv/\`), and start it. This also works on another host that gets the same address. Machines need not join again.
- **A vault with \`[vault] archive\`** may have records in the archive alone, and a flush empties the archive, too. So a back-up of such a vault includes the archive: a copy of its folder, or versions of the bucket's objects.
- **Revocations:** a machine that was revoked after the back-up is in again. Run \`tierkv peers\`, and \`tierkv revoke\` for it. In a pool with \`pool_key\` this is not needed, unless all vaults were put back.
- **Flushes:** a back-up brings back records that were flushed after it was made, so flush them again. In a pool with \`pool_key\` this is not needed: the other vaults report the flushes that a vault has missed. So a flush is undone only where all vaults are stopped and put back together.
- **Without a stop:** \`[vault] archive\` keeps copies of full segments in a bucket or folder. It has records, and no secrets.

Records are a cache. A lost vault loses no answer, so a back-up saves only time.

## An upgrade under load

Upgrade the vaults one after another, then the sidecar, then the engines. When this was rehearsed while requests ran, no request failed, and every record was kept. [Upgrade](upgrade.md) has the steps, and what was measured.
`;
