// Owns the proof that good configurations are taken as they are written: the seed's files, short forms, defaults.
import { homedir } from "node:os";
import { expect, test } from "vitest";
import { checkConfig } from "../../src/config/check.ts";
import type { Config } from "../../src/config/config.ts";
import { ENTRIES } from "../../src/config/schema.ts";

function accept(toml: string): Config {
  const { config, problems } = checkConfig(toml, "t.toml", {});
  expect(problems.map(({ message }) => message)).toEqual([]);
  if (config === null) throw new Error("refused without a problem");
  return config;
}

test("takes the inference node's file", () => {
  const config = accept(`[cluster]
role = "inference"
kv_cold = "192.168.1.10:50051"
ssm_cold = "192.168.1.11:50051"

[turbo_quant]
enabled = false
kv_dim = 256  # match your model's attention head dimension
`);
  expect(config.cluster).toMatchObject({
    role: "inference",
    kvCold: [{ host: "192.168.1.10", port: 50051, text: "192.168.1.10:50051" }],
    ssmCold: [{ host: "192.168.1.11", port: 50051, text: "192.168.1.11:50051" }],
  });
  expect(config.turboQuant).toEqual({ enabled: false, kvDim: 256, states: "raw" });
});

test("takes the vault machine's file", () => {
  const config = accept(
    '[cluster]\nrole = "kv_cold"\n\n[vault]\nmax_bytes = 24_000_000_000  # 24 GB\n',
  );
  expect(config.cluster.role).toBe("kv_cold");
  expect(config.vault.maxBytes).toBe(24e9);
  expect(config.vault.listen.text).toMatch(/^unix:\/.*\/vault\.sock$/);
});

test("takes turbo_quant = false in one line", () => {
  expect(accept("turbo_quant = false").turboQuant).toEqual({
    enabled: false,
    kvDim: null,
    states: "raw",
  });
});

test.each([
  ["24_000_000_000", 24e9],
  ['"24GB"', 24e9],
  ['"24 gb"', 24e9],
  ['"24GiB"', 24 * 1024 ** 3],
  ['"1.5TB"', 1.5e12],
  ['"512_000 KiB"', 512_000 * 1024],
])("takes %s as bytes", (written, bytes) => {
  expect(accept(`[vault]\nmax_bytes = ${written}`).vault.maxBytes).toBe(bytes);
});

test.each([
  ["localhost:1", "localhost", 1],
  ["vault_1.lan:50051", "vault_1.lan", 50051],
  ["[fe80::1]:50051", "fe80::1", 50051],
  ["10.0.0.1:65535", "10.0.0.1", 65535],
])("takes the address %s", (text, host, port) => {
  expect(accept(`[cluster]\nkv_cold = "${text}"`).cluster.kvCold).toEqual([{ host, port, text }]);
});

test("takes a socket where a vault listens and where it is found", () => {
  const text = "unix:/run/tierkv/vault.sock";
  const socket = { host: "", port: 0, text };
  expect(accept(`[vault]\nlisten = "${text}"`).vault.listen).toEqual(socket);
  expect(accept(`[cluster]\nkv_cold = "${text}"`).cluster.kvCold).toEqual([socket]);
});

test("takes one vault for both classes", () => {
  const { cluster } = accept('[cluster]\nrole = "cold"\nkv_cold = "a:1"\nssm_cold = "a:1"');
  expect(cluster.role).toBe("cold");
  expect(cluster.kvCold).toEqual(cluster.ssmCold);
});

test("takes port 0 where a vault listens", () => {
  expect(accept('[vault]\nlisten = "127.0.0.1:0"').vault.listen.port).toBe(0);
});

test("takes a path below the home directory", () => {
  expect(accept('[sidecar]\nsocket = "~/s.sock"').sidecar.socket).toBe(`${homedir()}/s.sock`);
});

test("an empty file means the defaults, each key of the schema among them", () => {
  const config = accept("");
  expect(config).toMatchObject({
    cluster: { role: "inference", kvCold: [], ssmCold: [] },
    turboQuant: { enabled: null, kvDim: null, states: "raw" },
    codec: { kv: "auto" },
    vault: { maxBytes: null },
    sidecar: {
      arenaBytes: null,
      arenaDir: null,
      autostart: true,
      idleExitS: 600,
    },
    restore: { waitMs: 5000, stallMs: 400, when: "faster" },
    log: { level: "info" },
  });
  const { path: _path, ...sections } = config;
  const leaves = Object.values(sections).flatMap((section): unknown[] => Object.values(section));
  expect(leaves).toHaveLength(ENTRIES.length);
  expect(leaves).not.toContain(undefined);
});

test("the socket lies in XDG_RUNTIME_DIR where that exists, else in /tmp under the user's id", () => {
  const socketFor = (dir: string): string | undefined =>
    checkConfig("", null, { XDG_RUNTIME_DIR: dir }).config?.sidecar.socket;
  expect(socketFor("/tmp")).toBe("/tmp/tierkv/sidecar.sock");
  const fallback = `/tmp/tierkv-${process.getuid?.()}/sidecar.sock`;
  expect(socketFor("/nowhere/at/all")).toBe(fallback);
  expect(socketFor("")).toBe(fallback);
});

test("the result is frozen to its leaves", () => {
  const config = accept('[cluster]\nkv_cold = "a:1"');
  expect(() => Object.assign(config.vault, { maxBytes: 1 })).toThrow(TypeError);
  expect(() => Object.assign(config.cluster.kvCold ?? {}, { port: 2 })).toThrow(TypeError);
  expect(() => Object.assign(config, { path: "x" })).toThrow(TypeError);
});

test("shared memory is named by its path", () => {
  const { cluster } = accept(
    '[cluster]\nkv_cold = "shm:/dev/shm/x"\nssm_cold = ["shm:/dev/shm/x"]',
  );
  expect([...cluster.kvCold, ...cluster.ssmCold].map(({ text }) => text)).toEqual([
    "shm:/dev/shm/x",
    "shm:/dev/shm/x",
  ]);
});

test("a store that others run is named by its address", () => {
  const { cluster } = accept(
    '[cluster]\ninsecure_lan = true\nkv_cold = ["shm:/dev/shm/x", "s3://my.bucket/a/b"]\nssm_cold = "valkey://a:1,b:2/3"',
  );
  expect([...cluster.kvCold, ...cluster.ssmCold].map(({ text }) => text)).toEqual([
    "shm:/dev/shm/x",
    "s3://my.bucket/a/b",
    "valkey://a:1,b:2/3",
  ]);
});

test("several vaults of a class are a list of different addresses", () => {
  const { cluster } = accept(`[cluster]\nkv_cold = ["a:1", "unix:/run/b"]\nssm_cold = []`);
  expect(cluster.kvCold.map(({ text }) => text)).toEqual(["a:1", "unix:/run/b"]);
  expect(cluster.ssmCold).toEqual([]);
});

test("a list of one vault is that vault: nothing else sees which was written", () => {
  const one = accept(`[cluster]\nkv_cold = "a:1"\nssm_cold = "b:1"`);
  expect(accept(`[cluster]\nkv_cold = ["a:1"]\nssm_cold = ["b:1"]`)).toEqual(one);
});
