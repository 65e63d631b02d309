// Owns the proof that a closed vault's lanes use the same TLS, and that read-only clients store nothing over them.
import { expect, test } from "vitest";
import { LANES_DEFAULT } from "../../src/base/limits/general.ts";
import { Goodput, lanesClose, lanesOpen } from "../../src/base/native.ts";
import type { Role } from "../../src/base/roles.ts";
import { VaultChannel } from "../../src/client/vault/channel.ts";
import type { HelloReply } from "../../src/wire/messages.ts";
import type { ChannelSecurity } from "../../src/wire/security.ts";
import { vaultService } from "../../src/wire/service.ts";
import { certificate, openClosedVault, shown, TOKENS } from "../support/closed-vaults.ts";
import type { ClosedVault } from "../support/closed-vaults.ts";
import { Pages } from "../support/lanes.ts";
import { TestClient } from "../support/record-client.ts";
import { keysOf, makeRecords, NAMESPACE, noise } from "../support/records.ts";
import { closeAfterTest, logger, MIB, SOON_MS, until } from "../support/vaults.ts";

function clientOf(
  vault: ClosedVault,
  security: ChannelSecurity,
  lanes = LANES_DEFAULT,
): TestClient {
  const { address } = vault;
  return closeAfterTest(new TestClient({ address, name: "kv", logger, lanes, security }));
}

const PAGE_BYTES = 128 * 1024;

async function roundTrip(client: TestClient): Promise<number> {
  const records = makeRecords(3, { payloadBytes: 100_000 });
  const statuses = await client.put(NAMESPACE, records, SOON_MS);
  expect(new Set(statuses)).toEqual(new Set([1]));
  const fetched = await client.take(NAMESPACE, keysOf(records), SOON_MS);
  for (const isToVault of [false, true]) {
    const probed = await client.probe(2, isToVault, SOON_MS);
    expect(probed.bytes).toBe(2 * MIB);
  }
  return fetched.records.size;
}

test("records travel there and back on lanes, with a token", async () => {
  const vault = await openClosedVault();
  const client = clientOf(vault, shown(vault, TOKENS.write));
  expect(await roundTrip(client)).toBe(3);
  expect(client.lanes).toBe("up");
  await until(() => vault.stats().lanes === LANES_DEFAULT, "all lanes");
});

test("the same where client certificates alone open the vault; lanes without one are refused", async () => {
  const vault = await openClosedVault({ tokens: null });
  const own = certificate("client", vault.ca);
  const security = {
    ...shown(vault, null),
    certPem: Buffer.from(own.certPem),
    keyPem: Buffer.from(own.keyPem),
  };
  const client = clientOf(vault, security);
  expect(await roundTrip(client)).toBe(3);
  expect(client.lanes).toBe("up");
  const { laneToken } = await helloAs(vault, security);
  const tls = { caPem: security.caPem, serverName: "127.0.0.1" };
  expect(await failureOf(vault.address, laneToken, tls)).not.toBe("");
});

test("a token that was overheard is of no use in the clear", async () => {
  const vault = await openClosedVault();
  const { laneToken } = await helloAs(vault, shown(vault, TOKENS.write));
  expect(await failureOf(vault.address, laneToken, undefined)).not.toBe("");
});

test.each<[Role, boolean]>([
  ["read", true],
  ["write", false],
  ["admin", false],
])("role %s gets lanes, and hears that it may only read: %s", async (role, isReadOnly) => {
  const vault = await openClosedVault();
  const { laneToken, readOnly } = await helloAs(vault, shown(vault, TOKENS[role]));
  expect([laneToken.length > 0, readOnly]).toEqual([true, isReadOnly]);
});

test("a read-only client reads others' records over lanes, and offers nothing", async () => {
  const vault = await openClosedVault();
  const pages = await Pages.open(3, PAGE_BYTES);
  const writer = clientOf(vault, shown(vault, TOKENS.write));
  await writer.store(NAMESPACE, pages.encode(), SOON_MS);
  const reader = clientOf(vault, shown(vault, TOKENS.read));
  await reader.hello(SOON_MS);
  const { statuses } = await reader.fetch(NAMESPACE, pages.plan(), { deadlineMs: SOON_MS });
  expect([[...statuses], reader.lanes, reader.isReadOnly]).toEqual([[1, 1, 1], "up", true]);
  expect(pages.fetched(2)).toEqual(noise(PAGE_BYTES, 2));
  const { counters } = vault.stats();
  const offer = reader.put(NAMESPACE, makeRecords(1), SOON_MS);
  await expect(offer).rejects.toMatchObject({ code: "ROLE_MISSING" });
  const encoded = reader.store(NAMESPACE, pages.encode(), SOON_MS);
  await expect(encoded).rejects.toMatchObject({ code: "ROLE_MISSING" });
  expect(vault.stats().counters).toEqual(counters);
});

type Offered = Pick<HelloReply, "laneToken" | "readOnly">;

async function helloAs({ address }: ClosedVault, security: ChannelSecurity): Promise<Offered> {
  const channel = closeAfterTest(new VaultChannel(address, security));
  const request = {
    protocolMin: 1,
    protocolMax: 1,
    clientVersion: "t",
    clientName: "t",
    flushed: 0,
  };
  const options = { timeoutMs: SOON_MS, signal: new AbortController().signal };
  return await channel.unary(vaultService.Hello, request, options);
}

/** Returns why lanes did not open; empty: they did. */
function failureOf(
  target: string,
  token: Buffer,
  tls: { caPem: Buffer; serverName: string } | undefined,
): Promise<string> {
  return new Promise((resolve) => {
    const hear = (request: number, error: string | null): void => {
      if (request === 0) resolve(error ?? "");
    };
    const id = lanesOpen([{ address: target }], token, 1, new Goodput(), new Goodput(), hear, tls);
    closeAfterTest({ close: () => lanesClose(id) });
  });
}
