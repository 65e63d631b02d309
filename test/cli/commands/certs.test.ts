// Owns the proof that `tierkv certs init` makes what a vault and its clients need, and that it works as printed.
// @module-tag nightly
import { readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { Program, runInside, runProgram } from "../../support/command-line.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest } from "../../support/vaults.ts";

/** The blocks of TOML that were printed. */
function blocksOf(stdout: string): { vault: string; cluster: string; gateway: string } {
  const [, vault = "", cluster = "", gateway = ""] =
    /(\[vault\][^]*?)on the engine's[^\n]*\n(\[cluster\][^]*?)for a gateway[^\n]*\n(\[gateway\][^]*)/.exec(
      stdout,
    ) ?? [];
  return { vault, cluster, gateway };
}

test("a CA, a server and a client; a vault takes the client, in its role, and nobody of another CA", async () => {
  const home = testDirectory();
  const env = { HOME: home };
  const init = async (dir: string, ...more: string[]): Promise<ReturnType<typeof blocksOf>> => {
    const args = ["certs", "init", "--dir", join(home, dir), "--host", "127.0.0.1", ...more];
    const { exitCode, stdout, stderr } = await runInside(args, { env });
    expect([exitCode, stderr]).toEqual([0, ""]);
    return blocksOf(stdout);
  };
  const own = await init("own");
  const ca = readFileSync(join(home, "own", "ca.pem"), "utf8");
  for (const name of ["ca-key.pem", "server-127.0.0.1-key.pem", "client-write-key.pem"])
    expect(statSync(join(home, "own", name)).mode & 0o777).toBe(0o600);

  const config = join(home, "v.toml");
  writeFileSync(config, `[cluster]\nrole = "kv_cold"\n${own.vault}listen = "127.0.0.1:0"\n`);
  const vault = new Program(["vault", "--json", "--config", config], { env });
  closeAfterTest({ close: () => vault.signal("SIGKILL") });
  const { address } = await vault.firstResult();

  const status = async (name: string, cluster: string): Promise<string> => {
    const path = join(home, `${name}.toml`);
    writeFileSync(path, `${cluster}kv_cold = "${String(address)}"\n`);
    const shown = await runProgram(["status", "--json", "--config", path], { env });
    const flushed = await runProgram(["flush", "--yes", "--config", path], { env });
    return shown.stdout + flushed.stdout;
  };
  const ofGateway = join(home, "g.toml");
  writeFileSync(ofGateway, `${own.gateway}engines = ["127.0.0.1:8000"]\n`);
  const checked = await runInside(["config", "check", "--config", ofGateway], { env });
  expect([checked.exitCode, checked.stderr]).toEqual([0, ""]);
  // The vault's own machine, with the printed lines alone.
  writeFileSync(
    config,
    readFileSync(config, "utf8").replace(/listen = .*/, `listen = "${String(address)}"`),
  );
  const there = await runProgram(["status", "--json", "--config", config], { env });
  expect(there.stdout).toContain(`"address":"${String(address)}","reachable":true`);
  const dropped = await runProgram(["flush", "--yes", "--config", config], { env });
  expect([dropped.exitCode, dropped.stdout]).toEqual([
    0,
    expect.stringContaining("0 records dropped"),
  ]);
  const writer = await status("writer", own.cluster);
  expect(writer).toContain(`"address":"${String(address)}","reachable":true`);
  expect(writer).toContain("role write, and Flush needs admin");

  const more = ["certs", "init", "--dir", join(home, "own")];
  const served = readFileSync(join(home, "own", "server-127.0.0.1.pem"), "utf8");
  const { stdout } = await runInside([...more, "--role", "admin"], { env });
  expect(stdout.split("\n")[0]).toMatch(/own: the CA is kept; client-admin made$/);
  expect(readFileSync(join(home, "own", "server-127.0.0.1.pem"), "utf8")).toBe(served);
  const anew = await runInside([...more, "--host", "127.0.0.2", "--host", "b.lan"], { env });
  expect(anew.stdout.split("\n")[0]).toMatch(
    /own: the CA is kept; server-127\.0\.0\.2 made; client-write made anew, with new keys \(.*\); the server certificate is for 127\.0\.0\.2, b\.lan alone$/,
  );
  const [, cluster = ""] = /(\[cluster\][^]*)/.exec(stdout) ?? [];
  expect(readFileSync(join(home, "own", "ca.pem"), "utf8")).toBe(ca);
  expect(await status("admin", cluster)).toContain("0 records dropped");

  const other = await init("other");
  expect(await status("other", other.cluster)).toContain("no trust in its certificate");
  const mixed = other.cluster.replace(/tls_ca = .*/, `tls_ca = "${join(home, "own", "ca.pem")}"`);
  expect(await status("mixed", mixed)).toContain("does not let this machine in");
});

test("hosts are asked for, and a CA without its key is not made anew", async () => {
  const home = testDirectory();
  const env = { HOME: home };
  const none = await runInside(["certs", "init"], { env });
  expect([none.exitCode, none.stderr]).toEqual([2, expect.stringContaining("write --host with")]);
  writeFileSync(join(home, "ca.pem"), "x");
  const args = ["certs", "init", "--dir", home, "--host", "a"];
  expect((await runInside(args, { env })).stderr).toContain("put the CA's key there");
});

/** A configuration file of a vault with the block that `certs init` printed, but for the lines that `without` matches. */
function vaultFile(home: string, block: string, without: RegExp): string {
  const path = join(home, "v.toml");
  const lines = block.split("\n").filter((line) => !without.test(line));
  writeFileSync(path, `[cluster]\nrole = "kv_cold"\n${lines.join("\n")}\nlisten = "127.0.0.1:0"\n`);
  return path;
}

async function initIn(home: string): Promise<ReturnType<typeof blocksOf>> {
  const args = ["certs", "init", "--dir", home, "--host", "127.0.0.1"];
  return blocksOf((await runInside(args, { env: { HOME: home } })).stdout);
}

test("a vault with a certificate of one's own CA, and no CA for its clients, makes tokens and invites nobody", async () => {
  const home = testDirectory();
  const { vault: block } = await initIn(home);
  const config = vaultFile(home, block, /tls_client_ca/);
  const vault = new Program(["vault", "--json", "--config", config], { env: { HOME: home } });
  closeAfterTest({ close: () => vault.signal("SIGKILL") });
  expect(await vault.firstResult()).toMatchObject({ event: "ready" });
  const tokens = join(home, ".local", "state", "tierkv", "tokens");
  expect(readFileSync(tokens, "utf8")).toMatch(/^admin:/m);
  vault.signal("SIGTERM");
  const { exitCode, stdout, stderr } = await vault.ended();
  expect([exitCode, stdout.includes("invitation")]).toEqual([0, false]);
  expect(stderr).toContain("vault ready");
  expect(stderr).not.toContain("tierkv invite");
});

test("what is no certificate is refused with its key and the fix", async () => {
  const home = testDirectory();
  const { vault: block } = await initIn(home);
  const config = vaultFile(home, block.replace("ca.pem", "no-ca.pem"), /^$/);
  writeFileSync(join(home, "no-ca.pem"), "not PEM", { mode: 0o600 });
  const args = ["vault", "--config", config];
  const { exitCode, stderr } = await runProgram(args, { env: { HOME: home } });
  expect(exitCode).not.toBe(0);
  expect(stderr).toContain("no-ca.pem: it holds no certificate as PEM");
  expect(stderr).toContain("correct [vault] tls_client_ca");
});
