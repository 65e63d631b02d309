// Owns the proof of joining and revoking at a running vault: a machine's connections end with its credential, and no others.
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { VaultChannel } from "../../../src/client/vault/channel.ts";
import type { VaultClient } from "../../../src/client/vault/vault-client.ts";
import { digestOf } from "../../../src/vault/access/tokens.ts";
import { vaultService } from "../../../src/wire/service.ts";
import { openClosedVault, shown, TOKENS } from "../../support/closed-vaults.ts";
import type { ClosedVault } from "../../support/closed-vaults.ts";
import { closeAfterTest, openClient, openVault, SOON_MS, until } from "../../support/vaults.ts";

const options = (): { timeoutMs: number; signal: AbortSignal } => ({
  timeoutMs: SOON_MS,
  signal: new AbortController().signal,
});

function channelAs(vault: ClosedVault, token: string): VaultChannel {
  return closeAfterTest(new VaultChannel(vault.address, shown(vault, token)));
}

const INVITE = { role: "write", forS: 60, uses: 2 };

async function invited(vault: ClosedVault, ask = INVITE): Promise<string> {
  const { secret } = await channelAs(vault, TOKENS.admin).unary(
    vaultService.Invite,
    ask,
    options(),
  );
  return secret;
}

interface Joined {
  name: string;
  token: string;
  client: VaultClient;
}

async function joined(vault: ClosedVault, secret: string, former?: string): Promise<Joined> {
  const formers = former === undefined ? [] : [digestOf(former)];
  const request = { machine: "box", formers };
  const reply = await channelAs(vault, secret).unary(vaultService.Redeem, request, options());
  const client = openClient(vault, "kv", { security: shown(vault, reply.token), lanes: 2 });
  await client.hello(SOON_MS);
  await until(() => client.lanes === "up", "lanes");
  return { ...reply, client };
}

const lookup = async (client: VaultClient): Promise<Buffer> =>
  await client.lookup(Buffer.alloc(32), Buffer.alloc(36), SOON_MS);

test("F65 a machine that is revoked loses its lanes, its connection and every further call; another keeps all of them", async () => {
  const vault = await openClosedVault();
  const secret = await invited(vault);
  const [one, other] = [await joined(vault, secret), await joined(vault, secret)];
  expect([one.name, other.name]).toEqual(["box", "box-2"]);
  expect(await lookup(one.client)).toEqual(Buffer.alloc(1));
  const lanes = vault.stats().lanes;
  expect(lanes).toBe(4);

  const held = channelAs(vault, one.token);
  await held.unary(
    vaultService.Hello,
    { protocolMin: 1, protocolMax: 99, clientVersion: "", clientName: "", flushed: 0 },
    options(),
  );
  let isCut = false;
  held.onceDisconnected(() => {
    isCut = true;
  });
  const admin = channelAs(vault, TOKENS.admin);
  expect(await admin.unary(vaultService.Revoke, { name: "box" }, options())).toEqual({
    revoked: true,
  });
  await until(() => isCut, "the end of its connection");
  await until(() => vault.stats().lanes === 2, "the end of its lanes");
  await expect(lookup(one.client)).rejects.toMatchObject({ code: "VAULT_LOCKED" });
  expect(await lookup(other.client)).toEqual(Buffer.alloc(1));
  expect(other.client.lanes).toBe("up");
  const { peers } = await admin.unary(vaultService.Peers, {}, options());
  expect(peers).toMatchObject([{ name: "box-2", role: "write", address: "127.0.0.1" }]);
  expect(await admin.unary(vaultService.Revoke, { name: "box" }, options())).toEqual({
    revoked: false,
  });
  const audit = readFileSync(vault.auditLog, "utf8");
  for (const said of ['"event":"machine_joined"', '"call":"Invite"', '"call":"Revoke"'])
    expect(audit).toContain(said);
  for (const token of [secret, one.token, other.token]) expect(audit).not.toContain(token);
});

test("a machine that joins again stays one machine: what its old token had open is closed, and its new one serves", async () => {
  const vault = await openClosedVault();
  const secret = await invited(vault, { ...INVITE, uses: 3 });
  const [one, other] = [await joined(vault, secret), await joined(vault, secret)];
  const again = await joined(vault, secret, one.token);
  expect(again.name).toBe("box");
  await until(() => vault.stats().lanes === 4, "the end of the old lanes");
  await expect(lookup(one.client)).rejects.toMatchObject({ code: "VAULT_LOCKED" });
  for (const { client } of [other, again]) expect(await lookup(client)).toEqual(Buffer.alloc(1));
  const { peers } = await channelAs(vault, TOKENS.admin).unary(vaultService.Peers, {}, options());
  expect(peers.map(({ name }) => name)).toEqual(["box-2", "box"]);
});

test("an administrator that revokes itself still hears that it is done", async () => {
  const vault = await openClosedVault();
  const secret = await invited(vault, { ...INVITE, role: "admin" });
  const { token, name } = await channelAs(vault, secret).unary(
    vaultService.Redeem,
    { machine: "me", formers: [] },
    options(),
  );
  const channel = channelAs(vault, token);
  expect(await channel.unary(vaultService.Revoke, { name }, options())).toEqual({ revoked: true });
  await expect(channel.unary(vaultService.Peers, {}, options())).rejects.toThrow();
});

test("an invitation opens Redeem and nothing else, and Redeem opens to nothing else", async () => {
  const vault = await openClosedVault();
  const secret = await invited(vault);
  await expect(
    channelAs(vault, secret).unary(vaultService.Stats, {}, options()),
  ).rejects.toMatchObject({ code: 16 });
  for (const token of [TOKENS.admin, "n".repeat(43)]) {
    await expect(
      channelAs(vault, token).unary(vaultService.Redeem, { machine: "x", formers: [] }, options()),
    ).rejects.toMatchObject({ code: 16 });
  }
  expect(vault.counter("calls_unauthenticated")).toBe(3);
});

test("inviting, listing and revoking are the administrator's; a role that is none is refused", async () => {
  const vault = await openClosedVault();
  const writer = channelAs(vault, TOKENS.write);
  const calls = [
    writer.unary(vaultService.Invite, INVITE, options()),
    writer.unary(vaultService.Peers, {}, options()),
    writer.unary(vaultService.Revoke, { name: "x" }, options()),
  ];
  for (const call of calls) await expect(call).rejects.toMatchObject({ code: 7 });
  await expect(invited(vault, { ...INVITE, role: "root" })).rejects.toMatchObject({ code: 3 });
});

test("a vault without credentials has no machines", async () => {
  const vault = await openVault();
  const channel = closeAfterTest(new VaultChannel(vault.address));
  await expect(channel.unary(vaultService.Peers, {}, options())).rejects.toThrow(
    "nobody joins this vault",
  );
});
