// Owns the proof of the two commands that bring two machines together: one line there, one line here, and nothing given to anybody else.
import { mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import type { AddressInfo } from "node:net";
import { hostname } from "node:os";
import { join } from "node:path";
import { createServer } from "node:tls";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { POOL_VAULTS_MAX } from "../../../src/base/limits/pool.ts";
import { decodeJoinCode, encodeJoinCode } from "../../../src/cli/join/join-code.ts";
import { certificate } from "../../support/closed-vaults.ts";
import { lastLine, Program, runInside, runProgram } from "../../support/command-line.ts";
import type { Outcome } from "../../support/command-line.ts";
import { poolKey, startPooled } from "../../support/pooled.ts";
import type { PooledVault } from "../../support/pooled.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, until } from "../../support/vaults.ts";

/** As a vault knows the machine of this test. */
const MACHINE = hostname()
  .replaceAll(/[^\w.-]/g, "_")
  .slice(0, 64);

let vaultHome = "";
let home = "";
let programs: Program[] = [];

beforeEach(() => {
  [vaultHome, home] = [testDirectory(), testDirectory()];
  programs = [];
});

afterEach(async () => {
  for (const program of programs) {
    program.signal("SIGKILL");
    await program.ended();
  }
});

interface Started {
  /** The file that the line was written into. */
  path: string;
  line: string;
  code: string;
  /** Port of the loopback, where every interface is listened on. */
  port: number;
}

async function startVault(role = "cold", port = 0): Promise<Started> {
  const args = ["vault", "--role", role, "--listen", `0.0.0.0:${port}`, "--max-bytes", "16MiB"];
  const program = new Program(args, { env: { HOME: vaultHome } });
  programs.push(program);
  await until(() => program.stdout.includes("\n") || program.process.exitCode !== null, "a line");
  const path = program.stdout.trim().split(" ").at(-1) ?? "";
  const line = readFileSync(path, "utf8").trim();
  const code = line.replace("tierkv join ", "");
  return { path, line, code, port: Number(decodeJoinCode(code).address.split(":").at(-1)) };
}

/** The same invitation by way of the loopback: a test may not count on another way. */
function overLoopback({ code, port }: Started): string {
  return encodeJoinCode({ ...decodeJoinCode(code), address: `127.0.0.1:${port}` });
}

async function joinWith(code: string, config: readonly string[] = []): Promise<Outcome> {
  return await runInside(["join", ...config, code], { env: { HOME: home } });
}

/** A configuration of the started vault, for its owner. */
function ownConfig({ port }: Started): string {
  const path = join(vaultHome, "own.toml");
  writeFileSync(path, `[cluster]\nrole = "cold"\n[vault]\nlisten = "0.0.0.0:${port}"\n`);
  return path;
}

function modeOf(...path: string[]): string {
  return (statSync(join(...path)).mode & 0o777).toString(8);
}

describe("a vault and a join", () => {
  test("one line there, one line here; what is kept is private; status and flush then know their role", async () => {
    const started = await startVault();
    expect(started.line).toMatch(/^tierkv join tkv1\.[\w-]+$/);
    const state = join(vaultHome, ".local", "state", "tierkv");
    expect(started.path).toBe(join(state, "invitation"));
    expect(programs[0]?.stdout).not.toContain("tkv1.");
    expect(programs[0]?.stderr).not.toContain("tkv1.");
    expect(modeOf(state)).toBe("700");
    for (const name of ["vault.pem", "tokens", "audit.jsonl", "members.json", "invitation"])
      expect(modeOf(state, name)).toBe("600");

    const { exitCode, stdout } = await joinWith(overLoopback(started));
    expect(exitCode).toBe(0);
    const address = `127.0.0.1:${started.port}`;
    expect(stdout).toContain(`joined the kv and ssm vault at ${address} as ${MACHINE}`);
    expect(stdout).toContain("starts again: restart its service, or run `pkill -f 'sidecar");
    const kept = join(home, ".config", "tierkv", "vaults", `127.0.0.1_${started.port}`);
    expect(modeOf(kept)).toBe("700");
    for (const name of ["vault.pem", "token"]) expect(modeOf(kept, name)).toBe("600");
    const token = readFileSync(join(kept, "token"), "utf8").trim();
    expect(stdout).not.toContain(token);
    expect(readFileSync(join(home, ".config", "tierkv", "tierkv.toml"), "utf8")).toBe(
      `[cluster]\nkv_cold = "${address}"\nssm_cold = "${address}"\n`,
    );

    const env = { HOME: home };
    const status = await runProgram(["status", "--json"], { env });
    expect(status.stdout).toContain(`"address":"${address}","reachable":true`);
    const denied = await runProgram(["flush", "--yes"], { env });
    expect(denied.stdout).toContain("role write, and Flush needs admin");
    expect(denied.stdout).toContain("`tierkv invite` prints there with --role admin");
    const own = join(vaultHome, "tierkv.toml");
    writeFileSync(own, `[cluster]\nrole = "cold"\n[vault]\nlisten = "0.0.0.0:${started.port}"\n`);
    const there = await runProgram(["flush", "--yes", "--config", own], {
      env: { HOME: vaultHome },
    });
    expect(there.exitCode).toBe(0);
    const invited = await runInside(
      ["invite", "--role", "admin", "--config", own, "--address", address],
      {
        env: { HOME: vaultHome },
      },
    );
    expect(invited.stderr).toMatch(/^good until \S+, for one machine$/m);
    // As a pipe brings it: the whole line, and perhaps without its end.
    const piped = { env: { HOME: home }, input: invited.stdout.trim() };
    expect((await runInside(["join", "-"], piped)).exitCode).toBe(0);
    expect((await runProgram(["flush", "--yes"], { env })).exitCode).toBe(0);
  });

  test("a file that people wrote keeps its comments; one that cannot be edited surely is left alone", async () => {
    const started = await startVault("ssm_cold");
    const code = overLoopback(started);
    const path = join(home, "mine.toml");
    writeFileSync(
      path,
      '# mine\n[cluster]\nkv_cold = "10.0.0.1:1" # the other\n\n[log]\nlevel = "warn"\n',
    );
    expect((await joinWith(code, ["--config", path])).exitCode).toBe(0);
    expect(readFileSync(path, "utf8")).toBe(
      `# mine\n[cluster]\nkv_cold = "10.0.0.1:1" # the other\nssm_cold = "127.0.0.1:${started.port}"\n\n[log]\nlevel = "warn"\n`,
    );
    const dotted = 'cluster.ssm_cold = "10.0.0.1:1"\n';
    writeFileSync(path, dotted);
    const own = ownConfig(started);
    const at = `127.0.0.1:${started.port}`;
    const next = await runInside(["invite", "--config", own, "--address", at], {
      env: { HOME: vaultHome },
    });
    const { exitCode, stdout } = await joinWith(next.stdout.trim(), ["--config", path]);
    expect(exitCode).toBe(1);
    expect(stdout).toContain(`write below its [cluster]: ssm_cold = "127.0.0.1:${started.port}"`);
    expect(readFileSync(path, "utf8")).toBe(dotted);
  });

  test("what the list has stays beside the vault that is joined; one far address that nothing is sent to gives way", async () => {
    const started = await startVault("kv_cold");
    const at = `127.0.0.1:${started.port}`;
    const path = join(home, "mine.toml");
    const toml = (list: readonly string[]): string =>
      `[cluster]\nkv_cold = ${JSON.stringify(list)}\n`;
    const own = ownConfig(started);
    const listed = async (before: string): Promise<[string, string]> => {
      writeFileSync(path, before);
      const asked = ["invite", "--config", own, "--address", at];
      const { stdout: line } = await runInside(asked, { env: { HOME: vaultHome } });
      const { stdout } = await joinWith(line.trim(), ["--config", path]);
      return [readFileSync(path, "utf8"), stdout];
    };
    const region = ["shm:/dev/shm/tierkv-none"];
    const [withRegion, said] = await listed(toml(region));
    expect(withRegion).toBe(`[cluster]\nkv_cold = ["${region[0]}", "${at}"]\n`);
    expect(said).toContain(`${path}: kv_cold = ["${region[0]}", "${at}"]`);
    const several = ["10.0.0.1:1", "10.0.0.2:1"];
    expect((await listed(toml(several)))[0]).toContain(`["10.0.0.1:1", "10.0.0.2:1", "${at}"]`);
    const trusted = `${toml(["10.0.0.1:1"])}insecure_lan = true\n`;
    expect((await listed(trusted))[0]).toContain(`["10.0.0.1:1", "${at}"]`);
    rmSync(join(home, ".config"), { recursive: true });
    expect((await listed(toml(["10.0.0.1:1"])))[0]).toContain(`kv_cold = "${at}"`);
  });

  test("a pool that keeps its own list takes the place of its vaults in this machine's list", async () => {
    const key = poolKey();
    const seed = await startPooled({ key, isClosed: true });
    const other = await startPooled({ key, isClosed: true, peers: [seed.address] });
    // Fails while the vault's list lacks the address.
    const known = ["vaults", "add", other.address, "--config", seed.config];
    await until(async () => (await runInside(known)).exitCode === 0, "the list to come");
    const path = join(home, "mine.toml");
    const list = ["127.0.0.9:1", seed.address, other.address];
    writeFileSync(path, `[cluster]\nkv_cold = ${JSON.stringify(list)}\n`);
    const { exitCode, stderr } = await joinWith(seed.joinLine(), ["--config", path]);
    expect([exitCode, stderr]).toEqual([0, ""]);
    expect(readFileSync(path, "utf8")).toBe(
      `[cluster]\nkv_cold = ["127.0.0.9:1", "pool:${seed.address}"]\n`,
    );
  });

  test("a machine that joins a pool by another of its vaults is still one machine there, with one token", async () => {
    const key = poolKey();
    const seed = await startPooled({ key, isClosed: true });
    const other = await startPooled({ key, isClosed: true, peers: [seed.address] });
    const known = ["vaults", "add", other.address, "--config", seed.config];
    await until(async () => (await runInside(known)).exitCode === 0, "the list to come");
    const path = join(home, "mine.toml");
    const isKnown = async ({ config }: PooledVault): Promise<string[]> => {
      const { stdout } = await runInside(["peers", "--json", "--config", config]);
      const { peers } = JSON.parse(stdout) as { peers: { name: string }[] };
      return peers.map(({ name }) => name);
    };
    const isAt = async (names: string[]): Promise<boolean> =>
      String([await isKnown(seed), await isKnown(other)]) === String([names, names]);
    const credentials = join(home, "credentials");
    writeFileSync(path, `[cluster]\ncredentials = "${credentials}"\n`);
    await joinWith(seed.joinLine(), ["--config", path]);
    const text = readFileSync(path, "utf8");
    expect(text).toContain(`kv_cold = "pool:${seed.address}"`);
    await until(async () => await isAt([MACHINE]), "both vaults to know it");
    const { stdout } = await joinWith(other.joinLine(), ["--config", path]);
    expect(stdout).toContain("a running sidecar uses the new token");
    expect(readFileSync(path, "utf8")).toBe(text);
    await until(async () => await isAt([MACHINE]), "both vaults to know it anew");
    const [first, second] = [seed, other].map(({ address }) =>
      readFileSync(join(credentials, address.replace(":", "_"), "token"), "utf8"),
    );
    expect(first).toBe(second);
    await runInside(["revoke", MACHINE, "--config", other.config]);
    await until(async () => await isAt([]), "both vaults to forget it");
  });

  test("a named file that is not there is made", async () => {
    const started = await startVault("kv_cold");
    const path = join(home, "new", "mine.toml");
    const { exitCode, stdout } = await joinWith(overLoopback(started), ["--config", path]);
    expect([exitCode, stdout]).toEqual([0, expect.stringContaining(`${path}: kv_cold = `)]);
    expect(readFileSync(path, "utf8")).toBe(`[cluster]\nkv_cold = "127.0.0.1:${started.port}"\n`);
  });

  test("a configuration that the new vault does not fit into is left alone, with what is wrong with it", async () => {
    const started = await startVault("kv_cold");
    const path = join(home, "mine.toml");
    const full = Array.from({ length: POOL_VAULTS_MAX }, (_, at) => `10.0.0.${at}:1`);
    const before = `[cluster]\nkv_cold = ${JSON.stringify(full)}\n`;
    writeFileSync(path, before);
    const { exitCode, stdout } = await joinWith(overLoopback(started), ["--config", path]);
    expect([exitCode, readFileSync(path, "utf8")]).toEqual([1, before]);
    expect(stdout).toMatch(/was not changed, because it has a mistake: .*kv_cold = /);
  });

  test("where nothing can be kept the code is not used up", async () => {
    const code = overLoopback(await startVault("kv_cold"));
    const path = join(home, "mine.toml");
    for (const place of [join(path, "below"), "/proc/version/vaults"]) {
      writeFileSync(path, `[cluster]\ncredentials = "${place}"\n`);
      const { exitCode, stderr } = await joinWith(code, ["--config", path]);
      expect([exitCode, stderr]).toEqual([
        2,
        expect.stringMatching(
          /cannot be written: ENOTDIR.*; set \[cluster\] credentials to a place/,
        ),
      ]);
    }
    expect((await joinWith(code)).exitCode).toBe(0);
  });

  test("the second start shows no token, and the same certificate", async () => {
    const first = await startVault();
    const pem = readFileSync(join(vaultHome, ".local", "state", "tierkv", "vault.pem"), "utf8");
    const [program] = programs;
    program?.signal("SIGTERM");
    await program?.ended();
    const args = ["vault", "--role", "cold", "--listen", "0.0.0.0:0", "--max-bytes", "16MiB"];
    const again = new Program(args, { env: { HOME: vaultHome } });
    programs.push(again);
    await until(() => again.stderr.includes("vault ready"), "the vault");
    expect(again.stdout).toBe("");
    expect(again.stderr).not.toContain(decodeJoinCode(first.code).secret);
    expect(readFileSync(join(vaultHome, ".local", "state", "tierkv", "vault.pem"), "utf8")).toBe(
      pem,
    );
  });
});

describe("join gives the token to nobody but that vault", () => {
  test("another certificate ends it before anything is sent", async () => {
    const other = certificate("server");
    let heard = 0;
    const server = createServer(
      { cert: other.certPem, key: other.keyPem, ALPNProtocols: ["h2"] },
      (socket) => {
        socket.on("data", (data: Buffer) => {
          heard += data.length;
        });
        socket.on("error", () => {});
      },
    );
    await new Promise<void>((resolve) => void server.listen(0, "127.0.0.1", resolve));
    closeAfterTest(server);
    const { port } = server.address() as AddressInfo;
    const code = encodeJoinCode({
      address: `127.0.0.1:${port}`,
      fingerprint: Buffer.alloc(32, 1),
      secret: "s".repeat(43),
    });
    const { exitCode, stderr } = await joinWith(code);
    expect(exitCode).toBe(1);
    expect(stderr).toContain("shows another certificate than the code says");
    expect(heard).toBe(0);
    expect(() => statSync(join(home, ".config"))).toThrow("ENOENT");
  });

  test("a code that is no longer good is told, and nothing is kept", async () => {
    const started = await startVault();
    const code = encodeJoinCode({
      ...decodeJoinCode(overLoopback(started)),
      secret: "o".repeat(43),
    });
    const { exitCode, stderr } = await joinWith(code);
    expect(exitCode).toBe(1);
    expect(stderr).toContain("does not let this machine in: the code was used, has expired");
    expect(stderr).toContain("tierkv invite");
    expect(() => statSync(join(home, ".config"))).toThrow("ENOENT");
  });

  test("a code that was used is no longer good", async () => {
    const code = overLoopback(await startVault());
    expect((await joinWith(code)).exitCode).toBe(0);
    const { exitCode, stderr } = await joinWith(code);
    expect(exitCode).toBe(1);
    expect(stderr).toContain("the code was used");
  });

  test("nobody there, and a code that is none, are told", async () => {
    const code = encodeJoinCode({
      address: "127.0.0.1:1",
      fingerprint: Buffer.alloc(32),
      secret: "s".repeat(43),
    });
    expect((await joinWith(code)).stderr).toContain(
      "the vault at 127.0.0.1:1 does not answer: refused: nobody listens on port 1; start the vault there",
    );
    expect(await joinWith("tkv1.nonsense")).toMatchObject({ exitCode: 2 });
    const asked = await runInside(["join"], { env: { HOME: home }, answer: "tkv1.x" });
    expect(asked.asked).toEqual(["Join code:"]);
  });
});

describe("the machines of a vault", () => {
  test("are listed, and shut out one by one; what one stored and what others have open stays", async () => {
    const started = await startVault();
    const own = ["--config", ownConfig(started)];
    const asOwner = { env: { HOME: vaultHome } };
    const at = ["--address", `127.0.0.1:${started.port}`];
    const none = await runInside(["peers", ...own], asOwner);
    expect(none.stdout).toContain("no machine has joined");
    const invited = await runInside(
      ["invite", "--uses", "2", "--for", "2h", ...at, ...own],
      asOwner,
    );
    const line = invited.stdout.trim();
    expect((await joinWith(line)).exitCode).toBe(0);
    const second = join(home, "second");
    const others = { env: { HOME: second }, input: line };
    expect((await runInside(["join", "-"], others)).exitCode).toBe(0);
    expect((await joinWith(line)).stderr).toContain("the code was used");

    const listed = await runInside(["peers", "--json", ...own], asOwner);
    const { peers } = JSON.parse(listed.stdout) as { peers: Record<string, unknown>[] };
    expect(peers).toMatchObject([
      { name: MACHINE, role: "write", address: "127.0.0.1" },
      { name: `${MACHINE}-2`, role: "write", address: "127.0.0.1" },
    ]);
    expect(peers[0]?.["seen"]).toMatch(/^\d{4}-/);
    const shown = await runInside(["peers", ...own], asOwner);
    expect(shown.stdout).toMatch(/^name +role +joined +last seen +address\n/);

    const revoked = await runInside(["revoke", MACHINE, ...own], asOwner);
    expect([revoked.exitCode, revoked.stdout]).toEqual([
      0,
      `${MACHINE} is shut out, and what it had open was closed; what it stored stays\n`,
    ]);
    const again = await runInside(["revoke", MACHINE, ...own], asOwner);
    expect([again.exitCode, again.stderr]).toEqual([
      2,
      expect.stringContaining(`no machine ${MACHINE} has joined: \`tierkv peers\` lists them`),
    ]);
    const out = await runProgram(["status"], { env: { HOME: home } });
    expect(out.stdout).toContain("does not let this machine in");
    const still = await runProgram(["status", "--json"], { env: { HOME: second } });
    expect(still.stdout).toContain('"reachable":true');
  });
});

describe("refused with the fix", () => {
  test.each([
    [
      ["--address", "vault:99999"],
      '--address = "vault:99999": port 99999 is not 1 to 65535; write --address "vault:50051"',
    ],
    [["--for", "2 weeks"], '--for = "2 weeks": not a number with s, m, h or d; write --for 2h'],
    [["--for", "31d"], "above the greatest value 2592000; write --for 2h, at most 30d"],
    [["--uses", "0"], '--uses = "0": below the least value 1'],
  ])("invite %j", async (args, says) => {
    const options = ["--listen", "0.0.0.0:1"];
    const { exitCode, stderr } = await runInside(["invite", ...args, ...options], {
      env: { HOME: vaultHome },
    });
    expect(exitCode).toBe(2);
    expect(stderr).toContain(says);
  });

  test("an invitation while the vault does not run", async () => {
    await startVault();
    programs[0]?.signal("SIGKILL");
    await programs[0]?.ended();
    const { exitCode, stderr } = await runInside(["invite", "--listen", "0.0.0.0:1"], {
      env: { HOME: vaultHome },
    });
    expect(exitCode).toBe(1);
    expect(stderr).toContain("this machine's vault at 127.0.0.1:1 does not answer");
    expect(stderr).toContain("start it on this machine (`tierkv vault`)");
  });

  test("a vault for other machines that can keep neither certificate nor token", async () => {
    writeFileSync(join(vaultHome, ".local"), "in the way");
    const args = ["vault", "--role", "cold", "--listen", "0.0.0.0:0", "--max-bytes", "16MiB"];
    const { exitCode, stderr } = await runProgram(args, { env: { HOME: vaultHome } });
    expect(exitCode).toBe(2);
    expect(lastLine(stderr)).toMatch(
      /vault\.pem: it cannot be .*\[vault\] state_dir.*\(CREDENTIALS\)/,
    );
  });

  test("an invitation to a vault that asks nobody, or has certificates of a CA", async () => {
    const open = await runInside(["invite", "--listen", "unix:/run/v.sock"], {
      env: { HOME: vaultHome },
    });
    expect(open.stderr).toContain("no vault with tokens is configured here");
    const path = join(vaultHome, "t.toml");
    mkdirSync(vaultHome, { recursive: true });
    writeFileSync(path, '[vault]\nlisten = "0.0.0.0:1"\ntls_cert = "/c.pem"\ntls_key = "/k.pem"\n');
    const own = await runInside(["invite", "--config", path], { env: { HOME: vaultHome } });
    expect(own.stderr).toContain("[cluster] tls_ca");
  });
});
