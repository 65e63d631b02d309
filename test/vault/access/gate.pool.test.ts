// Owns the proof of a pool token's rights at a vault: the calls for handing records over, and nothing else.
import { createHash, randomBytes, X509Certificate } from "node:crypto";
import { join } from "node:path";
import { expect, test } from "vitest";
import { VaultClient } from "../../../src/client/vault/vault-client.ts";
import { PoolKey } from "../../../src/discovery/entry.ts";
import { Gossip } from "../../../src/discovery/gossip.ts";
import { vaultService } from "../../../src/wire/service.ts";
import { connectTo, openClosedVault, rawCall, shown } from "../../support/closed-vaults.ts";
import type { ClosedVault } from "../../support/closed-vaults.ts";
import { TestClient } from "../../support/record-client.ts";
import { makeRecords, NAMESPACE } from "../../support/records.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, logger, SOON_MS } from "../../support/vaults.ts";

const OPEN = ["Gossip", "Hello", "Lookup", "List", "Name"];
const UNAUTHENTICATED = 16;

async function openPooled(): Promise<{ vault: ClosedVault; token: string }> {
  const key = new PoolKey(randomBytes(32));
  let token = "";
  const vault = await openClosedVault({}, {}, (certificate) => {
    const { raw } = new X509Certificate(certificate!);
    token = key.tokenFor(createHash("sha256").update(raw).digest());
    const file = join(testDirectory(), "pool.json");
    return new Gossip({ key, peers: [], file, certificate, logger, onRefused: () => {} });
  });
  return { vault, token };
}

const CALLS = Object.entries(vaultService as unknown as Record<string, { path: string }>);

test.each(CALLS.map(([name, { path }]) => [name, path] as const))(
  "the pool's token and %s",
  async (name, path) => {
    const { vault, token } = await openPooled();
    const { status } = await rawCall(connectTo(vault, { token }), path, { token }, 0);
    expect(status === UNAUTHENTICATED).toBe(!OPEN.includes(name));
  },
);

test("with the pool's token records are listed and taken, and with another pool's nothing is", async () => {
  const { vault, token } = await openPooled();
  const security = shown(vault, token);
  const records = makeRecords(3, { payloadBytes: 1000 });
  const client = closeAfterTest(
    new TestClient({ address: vault.address, name: "kv", logger, security }),
  );
  await client.put(NAMESPACE, records, SOON_MS);
  expect((await client.list(Buffer.alloc(0), SOON_MS)).rows.length).toBeGreaterThan(0);
  const other = await openPooled();
  const strange = closeAfterTest(
    new VaultClient({
      address: vault.address,
      name: "kv",
      logger,
      security: shown(vault, other.token),
    }),
  );
  await expect(strange.hello(SOON_MS)).rejects.toThrow();
});
