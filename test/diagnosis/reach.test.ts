// Owns the proof that a vault that cannot be reached is told within 5 s, with address, port and the reason, by every command.
// @module-tag alone
import { writeFileSync } from "node:fs";
import { createServer as createHttp } from "node:http";
import { createServer as createHttp2 } from "node:http2";
import { createServer } from "node:net";
import type { AddressInfo, Server, Socket } from "node:net";
import { join } from "node:path";
import { createServer as createTls } from "node:tls";
import { expect, test } from "vitest";
import { TierkvError } from "../../src/base/errors.ts";
import { nowMs } from "../../src/base/time.ts";
import { VaultClient } from "../../src/client/vault/vault-client.ts";
import { laneTrouble, sayHello } from "../../src/diagnosis/reach.ts";
import { certificate } from "../support/closed-vaults.ts";
import { runProgram } from "../support/command-line.ts";
import { testDirectory } from "../support/sidecars.ts";
import { closeAfterTest, logger, openVault } from "../support/vaults.ts";

/** Makes a client that speaks TLS alone. */
function overTls(address: string): VaultClient {
  const { certPem } = certificate("server");
  const security = {
    caPem: Buffer.from(certPem),
    serverName: "tierkv-vault",
    certPem: null,
    keyPem: null,
    token: (): null => null,
  };
  return closeAfterTest(new VaultClient({ address, name: "kv", logger, lanes: 0, security }));
}

/** Listens on the loopback; returns the port. */
async function listening(server: Server): Promise<number> {
  const sockets = new Set<Socket>();
  server.on("connection", (socket: Socket) => sockets.add(socket));
  await new Promise<void>((resolve) => void server.listen(0, "127.0.0.1", resolve));
  closeAfterTest({
    close: () => {
      for (const socket of sockets) socket.destroy();
      server.close();
    },
  });
  return (server.address() as AddressInfo).port;
}

const silent = (): Promise<number> => listening(createServer(() => {}));
const tls = (): Promise<number> => {
  const { certPem, keyPem } = certificate("server");
  return listening(createTls({ cert: certPem, key: keyPem, ALPNProtocols: ["h2"] }));
};
const http = (): Promise<number> =>
  listening(createHttp((_request, response) => void response.end("hello")));

async function closed(): Promise<number> {
  const server = createServer();
  const port = await listening(server);
  await new Promise((resolve) => void server.close(resolve));
  return port;
}

async function otherGrpc(): Promise<number> {
  const server = createHttp2();
  server.on("stream", (stream) => {
    const answer = { ":status": 200, "content-type": "application/grpc", "grpc-status": "12" };
    stream.respond(answer, { endStream: true });
  });
  return await listening(server);
}

test("a Valkey where nobody listens is told by host and port, not by its scheme", async () => {
  const port = await closed();
  for (const scheme of ["valkey", "valkeys"]) {
    const address = `${scheme}://127.0.0.1:${port}`;
    const down = new TierkvError("VAULT_DOWN", { name: "kv", address, reason: "down" });
    const client = { name: "kv", address, hello: () => Promise.reject(down) };
    await expect(sayHello(client, scheme === "valkeys")).rejects.toMatchObject({
      code: "VAULT_UNREACHED",
      message: expect.stringContaining(
        `refused: nobody listens on port ${port}; start the server there`,
      ) as string,
    });
  }
});

const STRANGERS = [
  [
    "a socket that never answers",
    silent,
    "no answer: the connection opens, and then no answer comes",
  ],
  ["a closed port", closed, "refused: nobody listens on port"],
  ["a TLS port", tls, "not joined: it speaks TLS, and this machine has no credentials for it"],
  ["a web server", http, 'not a vault: it answers "HTTP/1.1 400 Bad Request"'],
  ["another gRPC server", otherGrpc, "not a vault: it speaks gRPC and knows no vault"],
] as const;

const WITHIN_MS = 5_000;
const COMMANDS = [["status"], ["doctor"], ["bench"], ["flush", "--yes"]];

test("every command says so of a port behind which nothing answers", async () => {
  const [, open, says] = STRANGERS[0];
  const port = await open();
  const path = join(testDirectory(), "tierkv.toml");
  const socket = join(testDirectory(), "none.sock");
  const cluster = `[cluster]\nkv_cold = "127.0.0.1:${port}"\n`;
  writeFileSync(path, `${cluster}[sidecar]\nsocket = "${socket}"\n`);
  const isTold = async (argv: string[]): Promise<void> => {
    const { exitCode, stdout } = await runProgram([...argv, "--config", path]);
    expect([argv[0], exitCode]).toEqual([argv[0], 1]);
    expect(stdout).toContain(`kv vault at 127.0.0.1:${port} does not answer: ${says}`);
  };
  await Promise.all(COMMANDS.map(isTold));
});

const OF_A_POOL = [
  (address: string): string[] => ["drain", address],
  (address: string): string[] => ["drain", address, "--end"],
  (address: string): string[] => ["weight", address, "0.5"],
];

test("commands that change a pool say so, too, and whom they wait for", async () => {
  const [, open, says] = STRANGERS[0];
  const all = [`127.0.0.1:${await open()}`, `127.0.0.1:${await open()}`];
  const path = join(testDirectory(), "tierkv.toml");
  writeFileSync(path, `[cluster]\nkv_cold = ${JSON.stringify(all)}\n`);
  const isTold = async (argv: string[]): Promise<void> => {
    const { exitCode, stderr } = await runProgram(["vaults", ...argv, "--config", path]);
    expect([argv[0], exitCode]).toEqual([argv[0], 1]);
    expect(stderr).toMatch(/^waiting for 127\.0\.0\.1:/);
    expect(stderr).toMatch(new RegExp(`vault at 127\\.0\\.0\\.1:\\d+ does not answer: ${says}`));
  };
  await Promise.all(OF_A_POOL.map((argv) => isTold(argv(all[0]!))));
});

test.each(STRANGERS)("%s is known for what it is within 5 s", async (_what, open, says) => {
  const address = `127.0.0.1:${await open()}`;
  const client = closeAfterTest(new VaultClient({ address, name: "kv", logger, lanes: 0 }));
  const startMs = nowMs();
  await expect(sayHello(client, false)).rejects.toMatchObject({
    code: "VAULT_UNREACHED",
    message: expect.stringContaining(says) as string,
  });
  expect(nowMs() - startMs).toBeLessThan(WITHIN_MS);
});

test("a socket that closes at once is told for that", async () => {
  const path = join(testDirectory(), "closing.sock");
  const server = createServer((socket) => socket.destroy()).listen(path);
  closeAfterTest({ close: () => server.close() });
  const client = closeAfterTest(
    new VaultClient({ address: `unix:${path}`, name: "kv", logger, lanes: 0 }),
  );
  await expect(sayHello(client, false)).rejects.toMatchObject({
    message: expect.stringContaining(
      "not a vault: it closes the connection without a word",
    ) as string,
  });
});

test.each([
  ["closes", (socket: Socket): void => void socket.end()],
  ["resets", (socket: Socket): void => void socket.once("data", () => socket.resetAndDestroy())],
])("what %s a connection without a byte is not said to speak", async (_how, closes) => {
  const server = createServer((socket) => {
    socket.on("error", () => {});
    closes(socket);
  });
  const port = await listening(server);
  const client = overTls(`127.0.0.1:${port}`);
  await expect(sayHello(client, true)).rejects.toMatchObject({
    message: expect.stringContaining(
      "no answer: it closes the connection without a word",
    ) as string,
  });
});

test("a vault without TLS is told to somebody who would only speak TLS to it", async () => {
  const { address } = await openVault();
  const client = overTls(address);
  await expect(sayHello(client, true)).rejects.toMatchObject({
    message: expect.stringContaining("no TLS: it speaks in the clear") as string,
  });
});

test.each([
  ["refused", closed],
  ["no answer", silent],
] as const)("lanes that do not open are named with their reason: %s", async (verdict, open) => {
  const address = `127.0.0.1:${await open()}`;
  const client = { address, lanes: "broken" as const };
  expect(await laneTrouble(client)).toContain(`${address}: ${verdict}: `);
  expect(await laneTrouble({ ...client, lanes: "up" })).toBeNull();
});
