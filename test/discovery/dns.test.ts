// Owns the proof that names stand for the vaults that a DNS server says, and that a name without any is named.
import { writeFileSync } from "node:fs";
import { expect, test } from "vitest";
import { keptAt, knownTargets, namedTargets } from "../../src/cluster/sources.ts";
import { checkConfig } from "../../src/config/check.ts";
import type { Address } from "../../src/config/config.ts";
import { addressesOf } from "../../src/discovery/dns.ts";
import { startDnsServer } from "../support/dns-server.ts";
import { testDirectory } from "../support/sidecars.ts";

const at = (host: string, port: number): Address => ({
  host,
  port,
  text: port === 0 ? `dns:${host}` : `dns:${host}:${port}`,
});

test("a name with a port stands for all its addresses, one without for its services, another for itself", async () => {
  const { names, resolver } = await startDnsServer();
  names.set("vaults.example", ["10.0.0.9", "10.0.0.10"]);
  names.set("_kv._tcp.example", ["vault-1.example:50052", "vault-0.example:50051"]);
  expect(await addressesOf(at("vaults.example", 50051), resolver)).toEqual([
    "10.0.0.10:50051",
    "10.0.0.9:50051",
  ]);
  expect(await addressesOf(at("_kv._tcp.example", 0), resolver)).toEqual([
    "vault-0.example:50051",
    "vault-1.example:50052",
  ]);
  const plain = { host: "a", port: 1, text: "a:1" };
  expect(await addressesOf(plain, resolver)).toEqual(["a:1"]);
});

test("a vault with addresses of both families is one member; with IPv6 alone it is one, too", async () => {
  const { names, resolver } = await startDnsServer();
  const v6 = ["fd00:0:0:0:0:0:0:9", "fd00:0:0:0:0:0:0:a"];
  names.set("dual.example", ["10.0.0.9", "10.0.0.10", ...v6]);
  names.set("six.example", v6);
  const two = ["10.0.0.10:50051", "10.0.0.9:50051"];
  const six = ["[fd00::9]:50051", "[fd00::a]:50051"];
  expect([two, six]).toContainEqual(await addressesOf(at("dual.example", 50051), resolver));
  expect(await addressesOf(at("six.example", 50051), resolver)).toEqual(six);
});

test("a name without records, and a server that is silent, are an error that names the address", async () => {
  const server = await startDnsServer();
  const { names, resolver } = server;
  names.set("empty.example", []);
  for (const name of ["empty.example", "unknown.example"]) {
    const asked = addressesOf(at(name, 50051), resolver);
    await expect(asked).rejects.toThrow(
      `no vault is known of dns:${name}:50051: it has no A or AAAA`,
    );
  }
  server.close();
  await expect(addressesOf(at("empty.example", 1), resolver)).rejects.toThrow(
    /dns:empty.example:1/,
  );
});

const parse = (value: string): ReturnType<typeof checkConfig> =>
  checkConfig(`[cluster]\nkv_cold = ${value}\nredundancy = "copies:2"`, null, {});

test("the vaults behind a configured name are targets, and its certificate names the name", async () => {
  const { names, resolver } = await startDnsServer();
  names.set("vaults.example", ["10.0.0.9"]);
  names.set("srv.example", ["vault-0.example:50051"]);
  const { config } = parse('["a:1", "dns:vaults.example:50051", "dns:srv.example"]');
  const found = await namedTargets(config!, resolver);
  expect(found.map(({ address, serverName = "its host" }) => [address, serverName])).toEqual([
    ["10.0.0.9:50051", "vaults.example"],
    ["vault-0.example:50051", "its host"],
  ]);
});

test("without the name server the list that the sidecar kept is shown as the last one, and nothing is changed by it", async () => {
  const server = await startDnsServer();
  const { resolver } = server;
  const stateDir = testDirectory();
  const text = "dns:vaults.example:50051";
  const toml = `[cluster]\nkv_cold = "${text}"\n[vault]\nstate_dir = "${stateDir}"\n`;
  const config = checkConfig(toml, null, {}).config!;
  server.close();
  expect(await knownTargets(config, resolver)).toMatchObject({ targets: [], outdated: [] });
  const kept = [{ address: "10.0.0.9:50051", class: null, certificate: null }];
  writeFileSync(keptAt(config, text), JSON.stringify(kept), { mode: 0o600 });
  const { targets, failures, outdated } = await knownTargets(config, resolver);
  expect(targets.map(({ address }) => address)).toEqual(["10.0.0.9:50051"]);
  expect([failures, outdated]).toEqual([
    [],
    [expect.objectContaining({ code: "NAMES_UNRESOLVED" })],
  ]);
  await expect(namedTargets(config, resolver)).rejects.toThrow(/the name server gives no answer/);
});

test.each(['"dns:"', '"dns:a b:1"', '"dns:host:0"', '"dns:10.0.0.256:1"'])(
  "%s is refused with key, value and what to write",
  (value) => {
    const { config, problems } = parse(value);
    expect(config).toBeNull();
    expect(problems[0]!.message).toContain("kv_cold");
    expect(problems[0]!.message).toContain("dns:vaults.example:50051");
  },
);

test("a redundancy that is none is refused with what to write", () => {
  const messageOf = (toml: string): string => checkConfig(toml, null, {}).problems[0]!.message;
  const odd = messageOf('[cluster]\nkv_cold = ["a:1", "b:1"]\nredundancy = "raid"');
  expect(odd).toMatch(/redundancy.*none.*copies:2/);
});
