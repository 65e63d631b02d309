// Owns the proof that a bucket of a real S3 server serves as archive, and that its faults cost no record; nightly.
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { createServer, request } from "node:http";
import type { IncomingMessage, ServerResponse } from "node:http";
import { connect } from "node:net";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { ArchivedVault, bytesOf, losesDiskAndServes, someRecords } from "../support/archives.ts";
import { NAMESPACE } from "../support/records.ts";
import { closeAfterTest, until } from "../support/vaults.ts";

const TEST_MS_MAX = 240_000;
const KEYS = { AWS_ACCESS_KEY_ID: "tierkv", AWS_SECRET_ACCESS_KEY: "not-a-secret" };

/** Returns versitygw; `TIERKV_TEST_S3` names it where it is not on the path. */
function found(): string | null {
  const command = process.env["TIERKV_TEST_S3"] ?? "versitygw";
  try {
    execFileSync(command, ["--version"], { stdio: "ignore" });
    return command;
  } catch {
    return null;
  }
}

const server = process.env["TIERKV_TEST_LONG"] === undefined ? null : found();
if (process.env["TIERKV_TEST_LONG"] !== undefined && server === null) {
  console.warn("no versitygw, so no archive on S3 is tried");
}

/** Returns a port that was free a moment ago. */
async function freePort(): Promise<number> {
  const listener = createServer().listen(0, "127.0.0.1");
  await once(listener, "listening");
  const { port } = listener.address() as AddressInfo;
  listener.close();
  await once(listener, "close");
  return port;
}

/** Starts an S3 server with one bucket; returns its port. */
async function serve(command: string): Promise<number> {
  const folder = mkdtempSync(join(tmpdir(), "tierkv-s3-"));
  closeAfterTest({ close: () => rmSync(folder, { recursive: true, force: true }) });
  mkdirSync(join(folder, "bucket"));
  const port = await freePort();
  const { PATH = "" } = process.env;
  const child = spawn(command, ["--port", `127.0.0.1:${port}`, "posix", folder], {
    env: { PATH, ROOT_ACCESS_KEY: "tierkv", ROOT_SECRET_KEY: "not-a-secret" },
    stdio: "ignore",
  });
  closeAfterTest({ close: () => child.kill("SIGKILL") });
  const isUp = async (): Promise<boolean> => {
    const socket = connect(port, "127.0.0.1");
    try {
      await once(socket, "connect");
      return true;
    } catch {
      return false;
    } finally {
      socket.destroy();
    }
  };
  await until(isUp, "the S3 server");
  return port;
}

type Fault = "none" | "busy" | "expired" | "torn" | "slow" | "silent";

/** Passes requests on, or injects one fault. */
class S3Proxy {
  fault: Fault = "none";
  acted = 0;
  endpoint = "";

  static async to(port: number): Promise<S3Proxy> {
    const proxy = new S3Proxy();
    const front = createServer((asked, answer) => proxy.#pass(port, asked, answer));
    front.listen(0, "127.0.0.1");
    await once(front, "listening");
    closeAfterTest({
      close: () => {
        front.close();
        front.closeAllConnections();
      },
    });
    proxy.endpoint = `http://127.0.0.1:${(front.address() as AddressInfo).port}`;
    return proxy;
  }

  #pass(port: number, asked: IncomingMessage, answer: ServerResponse): void {
    const { fault } = this;
    if (fault !== "none") this.acted += 1;
    if (fault === "silent") return;
    if (fault === "busy" || fault === "expired") {
      const status = fault === "busy" ? 503 : 403;
      const code = fault === "busy" ? "SlowDown" : "ExpiredToken";
      asked.resume();
      answer.writeHead(status).end(`<Error><Code>${code}</Code></Error>`);
      return;
    }
    if (fault === "torn" && asked.method === "PUT") {
      asked.once("data", () => asked.socket.destroy());
      return;
    }
    const { method = "GET", url = "/", headers } = asked;
    const on = request({ host: "127.0.0.1", port, method, path: url, headers }, (got) => {
      const send = (): void => {
        answer.writeHead(got.statusCode ?? 502, got.headers);
        got.pipe(answer);
      };
      setTimeout(send, fault === "slow" ? 400 : 0);
    });
    on.on("error", () => answer.destroy());
    asked.pipe(on);
  }
}

const on = (endpoint: string): Record<string, string> => ({ ...KEYS, AWS_ENDPOINT_URL: endpoint });

test.skipIf(server === null)(
  "kill -9 and a lost disk: the bucket serves",
  { timeout: TEST_MS_MAX },
  async () => {
    const port = await serve(server ?? "");
    const vault = new ArchivedVault("s3://bucket/vaults/1", on(`http://127.0.0.1:${port}`));
    await losesDiskAndServes(vault);
  },
);

test.skipIf(server === null).each([
  ["busy", /503 SlowDown/],
  ["expired", /403 ExpiredToken/],
  ["torn", /./],
  ["silent", /timeout/i],
] as const)("F81 an archive that is %s", { timeout: TEST_MS_MAX }, async (fault, says) => {
  const proxy = await S3Proxy.to(await serve(server ?? ""));
  const vault = new ArchivedVault("s3://bucket/vault", on(proxy.endpoint));
  const before = someRecords(NAMESPACE, 0, 20);
  await vault.start();
  await vault.put(NAMESPACE, before);
  await vault.settled(bytesOf(before));

  proxy.fault = fault;
  const during = someRecords(NAMESPACE, 50, 20);
  await vault.put(NAMESPACE, during);
  await until(async () => (await vault.archive()).failing, "the failure to be seen");
  const { trouble, usedBytes } = await vault.archive();
  expect(trouble).toMatch(says);
  expect(proxy.acted).toBeGreaterThan(0);
  expect(usedBytes).toBeLessThan(bytesOf([...before, ...during]));
  expect(await vault.fetch(NAMESPACE, during)).toBe(during.length);
  expect(await vault.fetch(NAMESPACE, before)).toBe(before.length);
  const { counters, disk } = await vault.stats();
  expect([counters["archive_failures"]! > 0, disk?.failing]).toEqual([true, false]);

  proxy.fault = "none";
  await vault.settled(bytesOf([...before, ...during]));
  await vault.loseDisk();
  await vault.start();
  expect(await vault.fetch(NAMESPACE, [...before, ...during])).toBe(before.length + during.length);
  expect((await vault.stats()).counters["quarantined"]).toBe(0);
});

test.skipIf(server === null)("F81 a slow archive serves", { timeout: TEST_MS_MAX }, async () => {
  const proxy = await S3Proxy.to(await serve(server ?? ""));
  const vault = new ArchivedVault("s3://bucket/vault", on(proxy.endpoint));
  proxy.fault = "slow";
  const records = someRecords(NAMESPACE, 0, 20);
  await vault.start();
  await vault.put(NAMESPACE, records);
  await vault.settled(bytesOf(records));
  await vault.loseDisk();
  await vault.start();
  expect(await vault.fetch(NAMESPACE, records)).toBe(records.length);
  expect((await vault.stats()).counters["archive_failures"]).toBe(0);
});
