// Owns the proof of a client's side of TLS: whom it trusts, what it says where it does not, and that it shows no token before.
import type { AddressInfo } from "node:net";
import { createServer } from "node:tls";
import { expect, test } from "vitest";
import type { CertifiedKey } from "../../src/base/native.ts";
import { VaultClient } from "../../src/client/vault/vault-client.ts";
import { VAULT_SERVER_NAME } from "../../src/wire/security.ts";
import type { ChannelSecurity } from "../../src/wire/security.ts";
import { certificate, openClosedVault, TOKENS } from "../support/closed-vaults.ts";
import { closeAfterTest, logger, openVault, SOON_MS } from "../support/vaults.ts";

interface Trust {
  caPem: string;
  serverName?: string;
  own?: CertifiedKey;
  token?: string | null;
}

function clientOf(vault: { address: string }, trust: Trust | null): VaultClient {
  const security: ChannelSecurity | null =
    trust === null
      ? null
      : {
          caPem: Buffer.from(trust.caPem),
          serverName: trust.serverName ?? "127.0.0.1",
          certPem: trust.own === undefined ? null : Buffer.from(trust.own.certPem),
          keyPem: trust.own === undefined ? null : Buffer.from(trust.own.keyPem),
          token: () => trust.token ?? null,
        };
  const { address } = vault;
  return closeAfterTest(new VaultClient({ address, name: "kv", logger, lanes: 0, security }));
}

test("a vault of the CA that is trusted is greeted, with a token or a certificate, by address or by name", async () => {
  const vault = await openClosedVault();
  const { ca, caPem } = vault;
  await clientOf(vault, { caPem, token: TOKENS.read }).hello(SOON_MS);
  await clientOf(vault, { caPem, own: certificate("client", ca) }).hello(SOON_MS);
  await clientOf(vault, { caPem, token: TOKENS.read, serverName: VAULT_SERVER_NAME }).hello(
    SOON_MS,
  );
});

test("a certificate that signed itself is trusted when it is the one that was pinned", async () => {
  const server = certificate("server");
  const vault = await openClosedVault({ server });
  const pinned = { caPem: server.certPem, serverName: VAULT_SERVER_NAME, token: TOKENS.read };
  await clientOf(vault, pinned).hello(SOON_MS);
  const other = { ...pinned, caPem: certificate("server").certPem };
  await expect(clientOf(vault, other).hello(SOON_MS)).rejects.toMatchObject({
    code: "VAULT_CERTIFICATE",
  });
});

test.each<[name: string, server: (ca: CertifiedKey) => CertifiedKey, says: string]>([
  ["of another CA", () => certificate("server", certificate("ca")), "[cluster] tls_ca"],
  [
    "for another machine",
    (ca) => certificate("server", ca, { hosts: ["10.9.8.7"] }),
    "tierkv certs init --host",
  ],
  [
    "not yet valid",
    (ca) => certificate("server", ca, { fromDays: 1, toDays: 2 }),
    "set both clocks right",
  ],
])(
  "a server's certificate %s is refused with the reason and the fix",
  async (_name, server, says) => {
    const ca = certificate("ca");
    const vault = await openClosedVault({ server: server(ca) });
    const call = clientOf(vault, { caPem: ca.certPem, token: TOKENS.admin }).hello(SOON_MS);
    await expect(call).rejects.toMatchObject({
      code: "VAULT_CERTIFICATE",
      message: expect.stringContaining(says) as string,
    });
    expect(vault.counter("calls_unauthenticated")).toBe(0);
  },
);

test("an expired certificate is refused by its client; a vault does not even start with one", async () => {
  const ca = certificate("ca");
  const server = certificate("server", ca, { fromDays: -9, toDays: -1 });
  await expect(openClosedVault({ server })).rejects.toMatchObject({
    code: "CREDENTIALS",
    message: expect.stringContaining("it expired on") as string,
  });
  const listener = createServer({
    cert: server.certPem,
    key: server.keyPem,
    ALPNProtocols: ["h2"],
  });
  listener.on("tlsClientError", () => {});
  await new Promise<void>((resolve) => void listener.listen(0, "127.0.0.1", resolve));
  closeAfterTest(listener);
  const address = `127.0.0.1:${(listener.address() as AddressInfo).port}`;
  const call = clientOf({ address }, { caPem: ca.certPem, token: TOKENS.read }).hello(SOON_MS);
  await expect(call).rejects.toMatchObject({
    code: "VAULT_CERTIFICATE",
    message: expect.stringMatching(/expired.*renew it/) as string,
  });
});

test("a client without TLS is told what to run; one with TLS does not fall back", async () => {
  const closed = await openClosedVault();
  await expect(clientOf(closed, null).hello(SOON_MS)).rejects.toMatchObject({
    code: "VAULT_DOWN",
    message: expect.stringContaining("tierkv invite") as string,
  });
  const open = await openVault();
  const trust = { caPem: closed.caPem, token: TOKENS.read };
  await expect(clientOf(open, trust).hello(SOON_MS)).rejects.toMatchObject({ code: "VAULT_DOWN" });
  expect(open.counters.get("hellos")).toBe(0);
});

test("a wrong token, and none, are told with the fix; a lesser role with what it lacks", async () => {
  const vault = await openClosedVault();
  const { caPem } = vault;
  for (const token of ["x".repeat(40), null]) {
    await expect(clientOf(vault, { caPem, token }).hello(SOON_MS)).rejects.toMatchObject({
      code: "VAULT_LOCKED",
      message: expect.stringContaining("tierkv join") as string,
    });
  }
  const reader = clientOf(vault, { caPem, token: TOKENS.read });
  await expect(reader.flush(null, SOON_MS)).rejects.toMatchObject({
    code: "VAULT_DENIED",
    message: expect.stringContaining("role read, and Flush needs admin") as string,
  });
});

test("older TLS is not spoken, by either side", async () => {
  const vault = await openClosedVault();
  const { connect } = await import("node:tls");
  const [host = "", port] = vault.address.split(":");
  const failed = await new Promise<string>((resolve) => {
    const maxVersion = "TLSv1.2" as const;
    const socket = connect({
      host,
      port: Number(port),
      ca: vault.caPem,
      maxVersion,
      servername: VAULT_SERVER_NAME,
    });
    socket.once("error", (error: Error) => resolve(error.message));
    socket.once("secureConnect", () => resolve("connected"));
  });
  expect(failed).toMatch(/protocol version/);
  const { certPem: cert, keyPem: key } = certificate("server", vault.ca);
  const old = createServer({ cert, key, maxVersion: "TLSv1.2", ALPNProtocols: ["h2"] });
  let reason = "";
  old.on("tlsClientError", ({ message }) => {
    reason = message;
  });
  await new Promise<void>((resolve) => void old.listen(0, "127.0.0.1", resolve));
  closeAfterTest(old);
  const address = `127.0.0.1:${(old.address() as AddressInfo).port}`;
  const trust = { caPem: vault.caPem, token: TOKENS.read };
  await expect(clientOf({ address }, trust).hello(SOON_MS)).rejects.toMatchObject({
    code: "VAULT_DOWN",
  });
  expect(reason).toMatch(/unsupported protocol/);
});
