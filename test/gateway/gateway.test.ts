// Owns the proof that a gateway with a certificate speaks TLS, and refuses a key file or private key that others may read.
import { chmodSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { runInside } from "../support/command-line.ts";
import { call, gatewayBefore, keyFile, testFolder, until } from "../support/gateways.ts";

test("with tls_cert and tls_key clients speak TLS, streams pass event by event, and who leaves is noticed", async () => {
  const dir = testFolder();
  const { exitCode } = await runInside(["certs", "init", "--dir", dir, "--host", "127.0.0.1"]);
  expect(exitCode).toBe(0);
  const given = {
    tlsCert: join(dir, "server-127.0.0.1.pem"),
    tlsKey: join(dir, "server-127.0.0.1-key.pem"),
  };
  const { url, engines } = await gatewayBefore([["m"]], given);
  const [engine] = engines;
  expect(url).toMatch(/^https:\/\/127\.0\.0\.1:\d+$/);
  const ca = readFileSync(join(dir, "ca.pem"));
  expect((await call(url, "/health", { ca })).code).toBe(200);
  await expect(call(url.replace("https", "http"), "/health")).rejects.toThrow();
  const asked = {
    body: '{"model":"m","stream":true}',
    headers: { "content-type": "application/json" },
    ca,
  };
  const { text } = await call(url, "/v1/completions", asked);
  const tokens = [0, 1, 2, 3, 4].map((n) => `data: {"engine":"${engine!.name}","token":${n}}`);
  expect(text).toBe(`${[...tokens, "data: [DONE]"].join("\n\n")}\n\n`);
  engine!.tokens = 1e9;
  let client: { destroy(): void } | null = null;
  const onRequest = (one: { destroy(): void }): void => void (client = one);
  // Its first events are there before the engine has said the last.
  const cut = { ...asked, onRequest, onChunk: () => client?.destroy() };
  expect((await call(url, "/v1/completions", cut)).isCut).toBe(true);
  await until(() => engine!.aborted === 1);
  chmodSync(given.tlsKey, 0o644);
  await expect(gatewayBefore([["m"]], given)).rejects.toThrow("it has mode 644");
});

test("a file of keys that others may read is refused", async () => {
  const keys = keyFile();
  chmodSync(keys, 0o640);
  await expect(gatewayBefore([["m"]], { keys })).rejects.toThrow("it has mode 640");
});
