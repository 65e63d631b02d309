// Owns the proof about joined machines: invitations end, secrets are kept hashed, names and numbers are unique.
import { readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { INVITATIONS_MAX, MEMBERS_MAX, MEMBERS_SAVE_MS } from "../../../src/base/limits/access.ts";
import { openEntry, PoolKey } from "../../../src/discovery/entry.ts";
import { Members } from "../../../src/vault/access/members.ts";
import { digestOf } from "../../../src/vault/access/tokens.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { logger } from "../../support/vaults.ts";

let path = "";
let wallMs = 1_700_000_000_000;
let ms = 1_000_000;

beforeEach(() => {
  path = join(testDirectory(), "state", "members.json");
  vi.spyOn(Date, "now").mockImplementation(() => wallMs);
  vi.spyOn(performance, "now").mockImplementation(() => ms);
});
afterEach(() => {
  vi.restoreAllMocks();
});

const open = (): Members => new Members(path, logger);

test("an invitation lets in as many as it says, each with a credential of its own, also after a restart", () => {
  const secret = open().invite("write", 60, 2);
  const first = open().redeem(secret, "box");
  const second = open().redeem(secret, "box");
  expect([first.member.name, second.member.name]).toEqual(["box", "box-2"]);
  expect([first.member.account, second.member.account]).toEqual([1, 2]);
  expect(first.token).not.toBe(second.token);
  expect(open().find(first.token)).toMatchObject({ name: "box", role: "write" });
  expect(open().find("x".repeat(43))).toBeNull();
  expect(open().isInvited(secret)).toBe(false);
  expect(() => open().redeem(secret, "box")).toThrow(expect.objectContaining({ code: "STRANGER" }));
});

test("an invitation ends by itself", () => {
  const members = open();
  const secret = members.invite("read", 60, 5);
  wallMs += 59_999;
  expect(members.isInvited(secret)).toBe(true);
  members.redeem(secret, "early");
  wallMs += 1;
  expect(members.isInvited(secret)).toBe(false);
  expect(() => members.redeem(secret, "late")).toThrow(
    expect.objectContaining({ code: "STRANGER" }),
  );
});

test("no secret stands in the file, which is private and written in one step", () => {
  const members = open();
  const secret = members.invite("admin", 60, 2);
  const { token } = members.redeem(secret, "box");
  const text = readFileSync(path, "utf8");
  expect(text).not.toContain(secret);
  expect(text).not.toContain(token);
  expect(statSync(path).mode & 0o777).toBe(0o600);
});

test("a revoked machine is not known any more, and its number is not the next one's", () => {
  const members = open();
  const secret = members.invite("write", 60, 9);
  const { member, token } = members.redeem(secret, "box");
  members.revoke(member);
  expect([members.find(token), open().find(token), open().all]).toEqual([null, null, []]);
  expect(members.redeem(secret, "box").member).toMatchObject({ name: "box", account: 2 });
});

test("a machine that shows its earlier token joins again under its name, and that token opens nothing", () => {
  const members = open();
  const changes: [string, number, boolean][] = [];
  members.listen(({ name, account }, isGone) => changes.push([name, account, isGone]));
  const secret = members.invite("write", 60, 9);
  const first = members.redeem(secret, "box");
  members.redeem(secret, "other");
  const again = members.redeem(secret, "box", [digestOf(first.token)]);
  expect(again.replaced).toEqual([first.member]);
  expect(again.member).toMatchObject({ name: "box", account: 3 });
  expect([members.find(first.token), open().find(first.token)]).toEqual([null, null]);
  expect(open().all.map(({ name }) => name)).toEqual(["other", "box"]);
  expect(changes.slice(2)).toEqual([
    ["box", 3, false],
    ["box", 1, true],
  ]);
  // A token of nobody replaces nobody.
  expect(members.redeem(secret, "box", ["f".repeat(64)]).member.name).toBe("box-2");
});

test.each([
  ["gpu\u001b[2J box\n", "gpu__2J_box_"],
  ["", "machine"],
  ["x".repeat(300), "x".repeat(64)],
  ["ünï.host-1", "_n_.host-1"],
])("%j is known as %s", (machine, name) => {
  const members = open();
  expect(members.redeem(members.invite("read", 60, 1), machine).member.name).toBe(name);
});

test("machines with one long name get names that a pool's list takes", () => {
  const members = open();
  const secret = members.invite("write", 60, 12);
  const key = new PoolKey(Buffer.alloc(32, 7));
  const names = Array.from({ length: 12 }, () => {
    const { digest, name, role } = members.redeem(secret, "h".repeat(64)).member;
    const signed = key.sign({ kind: "machine", digest, name, role, gone: false, version: 1 });
    expect(openEntry(key.publicKey, signed)).toMatchObject({ name });
    return name;
  });
  expect(new Set(names).size).toBe(12);
});

test("when a machine was seen is kept from time to time, and at the end", () => {
  const members = open();
  const { token } = members.redeem(members.invite("read", 60, 1), "box");
  const member = members.find(token)!;
  const kept = (): number | undefined => open().all[0]?.seenMs;
  ms += MEMBERS_SAVE_MS - 1;
  members.seen(member, "10.0.0.1");
  expect(kept()).toBe(0);
  ms += 1;
  wallMs += 5;
  members.seen(member, "10.0.0.1");
  expect(kept()).toBe(wallMs);
  wallMs += 5;
  members.seen(member, "10.0.0.2");
  expect(kept()).toBe(wallMs - 5);
  members.close();
  expect(open().all[0]).toMatchObject({ seenMs: wallMs, address: "10.0.0.2" });
});

test("invitations, machines and what an invitation may say are bounded", () => {
  const members = open();
  for (const [forS, uses] of [
    [0, 1],
    [1e9, 1],
    [60, 0],
    [60, MEMBERS_MAX + 1],
    [1.5, 1],
  ] as const) {
    expect(() => members.invite("read", forS, uses)).toThrow("is not 1 to");
  }
  const secret = members.invite("read", 60, MEMBERS_MAX);
  for (let index = 1; index < INVITATIONS_MAX; index += 1) members.invite("read", 60, 1);
  expect(() => members.invite("read", 60, 1)).toThrow(`the limit is ${INVITATIONS_MAX}`);
  for (let index = 0; index < MEMBERS_MAX; index += 1) members.redeem(secret, "box");
  const last = members.invite("read", 60, 1);
  expect(() => members.redeem(last, "box")).toThrow(`the limit is ${MEMBERS_MAX}`);
  expect(members.isInvited(last)).toBe(true);
});

test.each([
  "",
  "nonsense",
  "null",
  "{}",
  '{"last":0,"members":[{}],"invitations":[]}',
  '{"last":0,"members":[],"invitations":[{"digest":"x"}]}',
  '{"last":-1,"members":[],"invitations":[]}',
])("a file that holds %j is refused with the fix", (text) => {
  open().invite("read", 60, 1);
  writeFileSync(path, text, { mode: 0o600 });
  expect(open).toThrow(`${path}: this is no file of machines; restore it, or remove it`);
});
