// Owns the proof which vaults a configuration speaks of.
import { expect, test } from "vitest";
import { localVaultAddress, vaultClass, vaultTargets } from "../../src/cluster/targets.ts";
import { checkConfig } from "../../src/config/check.ts";
import type { Config } from "../../src/config/config.ts";

function parse(toml: string): Config {
  const { config } = checkConfig(toml, null, {});
  if (config === null) throw new Error("bad test");
  return config;
}

const addresses = (toml: string): string[] =>
  vaultTargets(parse(toml)).map(({ name, address }) => `${name} ${address}`);

test.each([
  [
    "an engine without vaults: one of its own beside the socket",
    '[sidecar]\nsocket = "/run/s.sock"',
    ["vault (local) unix:/run/s.sock.vault"],
  ],
  ["an engine with one", '[cluster]\nkv_cold = "a:1"', ["kv_cold a:1"]],
  [
    "an engine with two",
    '[cluster]\nssm_cold = "b:2"\nkv_cold = "a:1"',
    ["kv_cold a:1", "ssm_cold b:2"],
  ],
  ["a vault: itself", '[cluster]\nrole = "kv_cold"', ["kv_cold unix:/tmp/tierkv-0/vault.sock"]],
  [
    "an engine with one vault for both classes",
    '[cluster]\nkv_cold = "a:1"\nssm_cold = "a:1"',
    ["cold a:1"],
  ],
  ["a vault for both: itself", '[cluster]\nrole = "cold"', ["cold unix:/tmp/tierkv-0/vault.sock"]],
  [
    "a vault for both on a socket",
    '[cluster]\nrole = "cold"\n[vault]\nlisten = "unix:/run/v.sock"',
    ["cold unix:/run/v.sock"],
  ],
  [
    "a vault beside another",
    '[cluster]\nrole = "kv_cold"\nssm_cold = "b:2"',
    ["ssm_cold b:2", "kv_cold unix:/tmp/tierkv-0/vault.sock"],
  ],
  [
    "a vault for everybody: over the loopback",
    '[cluster]\nrole = "ssm_cold"\n[vault]\nlisten = "0.0.0.0:7"',
    ["ssm_cold 127.0.0.1:7"],
  ],
  [
    "a vault for everybody, IPv6",
    '[cluster]\nrole = "kv_cold"\n[vault]\nlisten = "[::]:7"',
    ["kv_cold [::1]:7"],
  ],
  [
    "a vault that has its address written out",
    '[cluster]\nrole = "kv_cold"\nkv_cold = "me:9"',
    ["kv_cold me:9"],
  ],
])("%s", (_name, toml, expected) => {
  expect(addresses(toml)).toEqual(expected);
});

test("a vault's role says its class", () => {
  expect(vaultClass(parse('[cluster]\nrole = "kv_cold"'))).toBe("kv");
  expect(vaultClass(parse('[cluster]\nrole = "ssm_cold"'))).toBe("ssm");
  expect(vaultClass(parse('[cluster]\nrole = "cold"'))).toBe("both");
  expect(() => vaultClass(parse(""))).toThrow("defaults (no tierkv.toml): [cluster] role");
});

test("only an engine's machine without any vault starts one of its own", () => {
  const socket = '[sidecar]\nsocket = "/run/s.sock"\n';
  const address = (cluster: string): string | null =>
    localVaultAddress(parse(`[cluster]\n${cluster}\n${socket}`));
  expect(address("")).toBe("unix:/run/s.sock.vault");
  expect(address('kv_cold = "a:1"')).toBeNull();
  expect(address('ssm_cold = "a:1"')).toBeNull();
  expect(address('role = "cold"')).toBeNull();
});
