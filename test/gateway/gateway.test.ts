// Owns the proof that a gateway with a certificate speaks TLS, and refuses a key file or private key that others may read.
import { chmodSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { request } from "node:https";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { runInside } from "../support/command-line.ts";
import { gatewayBefore } from "../support/gateways.ts";

test("with tls_cert and tls_key clients speak TLS", async () => {
  const dir = mkdtempSync(join(tmpdir(), "certs-"));
  const { exitCode } = await runInside(["certs", "init", "--dir", dir, "--host", "127.0.0.1"]);
  expect(exitCode).toBe(0);
  const given = {
    tlsCert: join(dir, "server-127.0.0.1.pem"),
    tlsKey: join(dir, "server-127.0.0.1-key.pem"),
  };
  const { url } = await gatewayBefore([["m"]], given);
  expect(url).toMatch(/^https:\/\/127\.0\.0\.1:\d+$/);
  const ca = readFileSync(join(dir, "ca.pem"));
  const code = await new Promise<number>((resolve, reject) => {
    const asked = request(`${url}/health`, { ca }, (answer) => {
      answer.resume();
      resolve(answer.statusCode ?? 0);
    });
    asked.on("error", reject).end();
  });
  expect(code).toBe(200);
  chmodSync(given.tlsKey, 0o644);
  await expect(gatewayBefore([["m"]], given)).rejects.toThrow("it has mode 644");
});

test("a file of keys that others may read is refused", async () => {
  const keys = join(mkdtempSync(join(tmpdir(), "keys-")), "keys");
  writeFileSync(keys, "");
  chmodSync(keys, 0o640);
  await expect(gatewayBefore([["m"]], { keys })).rejects.toThrow("it has mode 640");
});
