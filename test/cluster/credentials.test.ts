// Owns the proof that a vault is spoken to in the clear only where nobody can listen, or where somebody wanted that.
import { spawnSync } from "node:child_process";
import { chmodSync, chownSync, existsSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { beforeEach, describe, expect, test } from "vitest";
import { createLogger } from "../../src/base/log.ts";
import { VaultClient } from "../../src/client/vault/vault-client.ts";
import {
  accessTo,
  joinedFiles,
  keepJoined,
  ownVault,
  securityFor,
} from "../../src/cluster/credentials.ts";
import { checkConfig } from "../../src/config/check.ts";
import type { Config } from "../../src/config/config.ts";
import { openSecurity } from "../../src/vault/access/identity.ts";
import { certificate, openClosedVault, secretFile } from "../support/closed-vaults.ts";
import { Program, runProgram } from "../support/command-line.ts";
import { testDirectory } from "../support/sidecars.ts";
import { closeAfterTest, logger, SOON_MS, until } from "../support/vaults.ts";

const LAN = "192.168.1.10:50051";
const PEM = certificate("server").certPem;
let folder = "";

beforeEach(() => {
  folder = join(testDirectory(), "vaults");
});

function configFor(cluster: string): Config {
  const text = `[cluster]\ncredentials = "${folder}"\n${cluster}`;
  const { config, problems } = checkConfig(text, "test.toml", {});
  if (config === null) throw new Error(JSON.stringify(problems));
  return config;
}

const trust = (config: Config, address: string, isOwn = false): unknown =>
  securityFor(config, { address, isOwn }, logger);

describe("a vault of another machine", () => {
  test.each([
    [`kv_cold = "pool:vault1.lan:50051"`, "kv_cold", "pool:vault1.lan:50051"],
    [`ssm_cold = "pool:vault9.lan:50051"`, "ssm_cold", "pool:vault9.lan:50051"],
    [`kv_cold = ["a.lan:1", "vault1.lan:50051"]`, "kv_cold", "vault1.lan:50051"],
  ])("of %s, the entry is named that leads to it", (line, key, value) => {
    const ask = (): unknown => trust(configFor(line), "vault1.lan:50051");
    expect(ask).toThrow(`[cluster] ${key} = "${value}": this machine has not joined it`);
  });

  test("is refused when it was not joined, and told what was", () => {
    const config = configFor(`kv_cold = "vault1.lan:50051"`);
    const ask = (): unknown => trust(config, "vault1.lan:50051");
    expect(ask).toThrow(expect.objectContaining({ code: "INSECURE_VAULT" }));
    expect(ask).toThrow(
      /^\[cluster\] kv_cold = "vault1.lan:50051": .*has not joined.*run the `tierkv join` line.*insecure_lan = true/,
    );
    keepJoined(config, LAN, PEM, "t".repeat(43));
    expect(ask).toThrow("(joined here: 192.168.1.10_50051)");
    expect(trust(config, LAN)).toMatchObject({ serverName: "tierkv-vault" });
  });

  test.each([
    ["ca", "vault.pem"],
    ["token", "token"],
  ] as const)(
    "that was joined is refused when its %s is gone, or others may read it",
    (file, name) => {
      const config = configFor(`kv_cold = "${LAN}"\ninsecure_lan = true`);
      keepJoined(config, LAN, PEM, "t".repeat(43));
      const path = joinedFiles(config, LAN)[file];
      chmodSync(path, 0o644);
      expect(() => trust(config, LAN)).toThrow(`${path}: it has mode 644`);
      rmSync(path);
      expect(() => trust(config, LAN)).toThrow(
        `${name}: it is gone, and ${LAN} was joined; run the \`tierkv join\` line`,
      );
    },
  );

  test("is refused when nobody can say whether it was joined", () => {
    const config = configFor(`kv_cold = "${LAN}"\ninsecure_lan = true`);
    mkdirSync(folder);
    writeFileSync(join(folder, "192.168.1.10_50051"), "no folder");
    expect(() => trust(config, LAN)).toThrow(expect.objectContaining({ code: "CREDENTIALS" }));
  });

  test("is spoken to in the clear only with insecure_lan, which warns", () => {
    const lines: string[] = [];
    const loud = createLogger("test", {
      level: "warn",
      tty: false,
      destination: { write: (line) => void lines.push(line) },
    });
    const target = { address: LAN, isOwn: false };
    const config = configFor(`kv_cold = "${LAN}"\ninsecure_lan = true`);
    expect(securityFor(config, target, loud)).toBeNull();
    expect(lines.join("")).toMatch(/"level":"warn".*insecure_lan/);
  });

  test.each(["unix:/run/x.sock", "127.0.0.1:50051", "[::1]:50051", "localhost:50051"])(
    "is not meant by %s",
    (address) => {
      expect(trust(configFor(""), address)).toBeNull();
    },
  );
});

describe("a vault's socket", () => {
  test.skipIf(process.getuid?.() !== 0)("F39 of another user is not spoken to", () => {
    const place = testDirectory();
    const path = join(place, "v.sock");
    const ask = (): unknown => trust(configFor(""), `unix:${path}`);
    spawnSync("/usr/bin/python3", ["-c", BIND, path]);
    expect(ask()).toBeNull();
    chownSync(path, 65_534, 65_534);
    expect(ask).toThrow(/v\.sock belongs to user 65534, this is user 0; set \[vault\] listen/);
    chownSync(path, 0, 0);
    chmodSync(place, 0o777);
    expect(ask).toThrow("has mode 777, so others may put a socket there");
  });
});

/** A socket that stays when its process ends. */
const BIND = "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])";

/** Somebody who counts who comes, on the loopback. */
async function listener(): Promise<{ port: number; came(): number }> {
  let came = 0;
  const server = createServer((socket) => {
    came += 1;
    socket.destroy();
  });
  await new Promise<void>((resolve) => void server.listen(0, "127.0.0.1", resolve));
  closeAfterTest(server);
  return { port: (server.address() as AddressInfo).port, came: () => came };
}

test("nobody is connected to, and every call says why", async () => {
  const { port, came } = await listener();
  const address = `LOCALHOST:${port}`;
  const config = configFor(`kv_cold = "${address}"`);
  const access = accessTo(config, { address, isOwn: false }, logger);
  const client = closeAfterTest(new VaultClient({ address, name: "kv", logger, ...access }));
  expect([client.state, client.isDown]).toEqual(["refused", true]);
  const refusal = { code: "INSECURE_VAULT" };
  await expect(client.hello(SOON_MS)).rejects.toMatchObject(refusal);
  await expect(client.lookup(Buffer.alloc(32), Buffer.alloc(36), SOON_MS)).rejects.toMatchObject(
    refusal,
  );
  expect(came()).toBe(0);
});

test("a sidecar serves on without such a vault, says so once, and status shows it as refused", async () => {
  const { port, came } = await listener();
  const address = `127.0.0.1:${port}`;
  const socket = join(testDirectory(), "s.sock");
  const text = `[cluster]\ncredentials = "${folder}"\nkv_cold = "${address}"\n[sidecar]\nsocket = "${socket}"\n`;
  const path = join(testDirectory(), "tierkv.toml");
  writeFileSync(path, text);
  const config = configFor(`kv_cold = "${address}"`);
  keepJoined(config, address, PEM, "t".repeat(43));
  rmSync(joinedFiles(config, address).ca);
  const sidecar = new Program(["sidecar", "--json", "--config", path]);
  closeAfterTest({ close: () => sidecar.signal("SIGKILL") });
  await until(() => sidecar.stdout.includes("\n"), "the sidecar");
  const said = sidecar.stderr.split("\n").filter((line) => line.includes("vault refused"));
  expect(said).toHaveLength(1);
  expect(said[0]).toMatch(/"level":"error".*vault\.pem: it is gone/);
  const json = await runProgram(["status", "--json", "--config", path]);
  expect(json.exitCode).toBe(1);
  const { targets } = JSON.parse(json.stdout) as { targets: Record<string, unknown>[] };
  expect(targets).toMatchObject([
    { target: "sidecar", reachable: true },
    { target: "kv_cold", reachable: false, refused: true },
  ]);
  const { stdout } = await runProgram(["status", "--config", path]);
  expect(stdout).toMatch(/kv_cold\s+127\.0\.0\.1:\d+\s+refused/);
  expect(stdout).toContain("refused: ");
  expect(came()).toBe(0);
});

test("commands on the machine of a vault whose certificate a CA signed reach it, without that CA's", async () => {
  const ca = certificate("ca");
  const { certPem, keyPem } = certificate("server", ca);
  const [tlsCert, tlsKey] = [secretFile(certPem), secretFile(keyPem)];
  const vault = await openClosedVault({ tlsCert, tlsKey, tlsClientCa: null });
  const lines = [`listen = "${vault.address}"`, `tls_cert = "${tlsCert}"`, `tls_key = "${tlsKey}"`];
  const toml = `\n[vault]\n${[...lines, `tokens = "${vault.tokensFile}"`].join("\n")}`;
  const security = ownVault(configFor(toml), vault.address);
  const own = new VaultClient({ address: vault.address, name: "kv", logger, security });
  closeAfterTest(own);
  expect(await own.stats(SOON_MS)).toMatchObject({ records: 0 });
  await until(() => own.lanes === "up", "lanes");

  const another = certificate("server", ca);
  writeFileSync(tlsCert, another.certPem);
  writeFileSync(tlsKey, another.keyPem);
  const changed = ownVault(configFor(toml), vault.address);
  const refused = new VaultClient({
    address: vault.address,
    name: "kv",
    logger,
    security: changed,
  });
  closeAfterTest(refused);
  await expect(refused.stats(SOON_MS)).rejects.toThrow("certificate");
});

test("commands on the machine of a vault that client certificates alone open are its admin by its own certificate", async () => {
  const ca = certificate("ca");
  const { certPem, keyPem } = certificate("server", ca);
  // A chain, whose other certificates identify nobody.
  const [tlsCert, tlsKey] = [secretFile(certPem + ca.certPem), secretFile(keyPem)];
  const tlsClientCa = secretFile(certificate("ca").certPem);
  const vault = await openClosedVault({ tlsCert, tlsKey, tlsClientCa, tokens: null });
  const keys = {
    listen: vault.address,
    tls_cert: tlsCert,
    tls_key: tlsKey,
    tls_client_ca: tlsClientCa,
  };
  const lines = Object.entries(keys).map(([name, value]) => `${name} = "${value}"`);
  const config = configFor(`role = "kv_cold"\n[vault]\n${lines.join("\n")}`);
  const clientWith = (pair: { certPem: string; keyPem: string } | null): VaultClient => {
    const own = ownVault(config, vault.address);
    const shown = pair && { certPem: Buffer.from(pair.certPem), keyPem: Buffer.from(pair.keyPem) };
    const security = { ...own, ...shown };
    return closeAfterTest(
      new VaultClient({ address: vault.address, name: "kv", logger, security }),
    );
  };
  const own = clientWith(null);
  expect(await own.flush(null, SOON_MS)).toMatchObject({ records: 0 });
  await until(() => own.lanes === "up", "lanes");
  // As good a certificate of the same CA for the same host, but with another key.
  for (const pair of [certificate("server", ca), certificate("client", ca, { unit: "admin" })])
    await expect(clientWith(pair).stats(SOON_MS)).rejects.toThrow("no valid token");
  expect(trust(config, vault.address, true)).toMatchObject({ isPinned: true });
});

const kept = (config: Config): string => join(config.vault.stateDir, "vault.pem");

function neverStarted(): Config {
  const state = join(testDirectory(), "state");
  return configFor(`role = "cold"\n[vault]\nlisten = "127.0.0.1:5"\nstate_dir = "${state}"`);
}

test("of a vault that never started, commands make nothing; a sidecar may, and its first start still invites", () => {
  const config = neverStarted();
  const absent = `${kept(config)}: the file is missing; start the vault`;
  expect(() => trust(config, "127.0.0.1:5", true)).toThrow(absent);
  expect(existsSync(config.vault.stateDir)).toBe(false);
  const ofSidecar = accessTo(config, { address: "127.0.0.1:5", isOwn: true }, logger);
  expect(ofSidecar.security?.token()).toMatch(/^[\w-]{43}$/);
  const { isNew, security } = openSecurity(config.vault, logger);
  security.members?.invite("write", 60, 1);
  expect([isNew, openSecurity(config.vault, logger).isNew]).toEqual([true, false]);
});

test.skipIf(process.getuid?.() !== 0)(
  "root reaches a service's vault with the files of that service's user, and of no third one",
  () => {
    const config = neverStarted();
    openSecurity(config.vault, logger);
    for (const name of ["", "vault.pem", "tokens"])
      chownSync(join(config.vault.stateDir, name), 65_533, 65_533);
    const { token } = ownVault(config, "127.0.0.1:5");
    expect(token()).toMatch(/^[\w-]{43}$/);
    chownSync(kept(config), 65_534, 65_534);
    expect(() => ownVault(config, "127.0.0.1:5")).toThrow("it belongs to user 65534");
  },
);
