// Owns the proof that addresses of one family stand for a name's machines, and which family that is.
import type { NetworkInterfaceInfo } from "node:os";
import { expect, test } from "vitest";
import { isIpv6Alone, ofOneFamily } from "../../src/base/families.ts";

const at = (address: string, internal = false): NetworkInterfaceInfo => {
  const family = address.includes(":") ? "IPv6" : "IPv4";
  const own = { address, internal, netmask: "", mac: "", cidr: null };
  return family === "IPv6" ? { ...own, family, scopeid: 0 } : { ...own, family };
};

const LOOPBACK = [at("127.0.0.1", true), at("::1", true)];
const LINK = at("fe80::1");

test.each([
  ["nothing but the loopback", false, []],
  ["IPv4", false, [at("10.0.0.1"), LINK]],
  ["both", false, [at("10.0.0.1"), at("fd00::1")]],
  ["IPv6 alone", true, [at("fd00::1"), LINK]],
  ["an address of its link alone", false, [LINK]],
])("a machine with %s: that it has IPv6 alone is %s", (_name, isAlone, outer) => {
  expect(isIpv6Alone({ lo: LOOPBACK, eth0: outer })).toBe(isAlone);
});

test("a name with both families stands for the machines once, whatever their numbers", () => {
  const both = { v4: ["10.0.0.1"], v6: ["[fd00::1]", "[fd00::2]"] };
  expect(ofOneFamily(both, false)).toEqual(both.v4);
  expect(ofOneFamily(both, true)).toEqual(both.v6);
  expect(ofOneFamily({ v4: both.v4, v6: [] }, true)).toEqual(both.v4);
  expect(ofOneFamily({ v4: [], v6: both.v6 }, false)).toEqual(both.v6);
});
