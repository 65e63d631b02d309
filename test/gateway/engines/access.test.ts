// Owns the proof that engines with an API key or TLS serve behind the gateway.
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:https";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import {
  call,
  complete,
  gatewayBefore,
  keyFile,
  testFolder,
  until,
} from "../../support/gateways.ts";
import { SimEngine } from "../../support/sim-engine.ts";

function secretFile(text: string): string {
  const path = join(testFolder(), "engine-key");
  writeFileSync(path, `${text}\n`, { mode: 0o600 });
  return path;
}

async function keyedEngine(): Promise<SimEngine> {
  const engine = new SimEngine(["m"]);
  engine.key = "of-engines";
  await engine.start();
  onTestFinished(() => engine.kill());
  return engine;
}

test("an engine on a Unix socket serves, and is down once its socket is gone", async () => {
  const path = join(testFolder(), "vllm.sock");
  const engine = await new SimEngine(["m"]).start(path);
  onTestFinished(() => engine.kill().catch(() => {}));
  const text = `unix:${path}`;
  const { url } = await gatewayBefore([], { engines: [{ host: "", port: 0, text }] });
  const answer = await complete(url, true);
  expect([answer.code, answer.headers["x-gateway-destination-endpoint-served"]]).toEqual([
    200,
    text,
  ]);
  expect(answer.text).toContain("[DONE]");
  await engine.kill();
  await until(async () => (await complete(url, false)).code === 503);
});

const addressOf = (name: string): { host: string; port: number; text: string } => {
  const [host = "", port = ""] = name.split(":");
  return { host, port: Number(port), text: name };
};

test("with the engines' key and keys of its own, the gateway's clients need no engine's key", async () => {
  const engine = await keyedEngine();
  const { url } = await gatewayBefore([], {
    engines: [addressOf(engine.name)],
    engineKey: secretFile("of-engines"),
    keys: keyFile("a secret"),
  });
  const headers = { "content-type": "application/json", authorization: "Bearer secret" };
  const answer = await call(url, "/v1/completions", { body: '{"model":"m"}', headers });
  expect(answer.code).toBe(200);
  expect(engine.asked[0]!.headers.authorization).toBe("Bearer of-engines");
});

test("without keys of its own, only clients with the engine's key are served", async () => {
  const engine = await keyedEngine();
  const { url } = await gatewayBefore([], {
    engines: [addressOf(engine.name)],
    engineKey: secretFile("of-engines"),
  });
  expect((await complete(url, false)).code).toBe(401);
  const headers = { "content-type": "application/json", authorization: "Bearer of-engines" };
  expect((await call(url, "/v1/completions", { body: '{"model":"m"}', headers })).code).toBe(200);
});

test("an engine that asks for a key the gateway lacks is down, and the reason names the setting", async () => {
  const engine = await keyedEngine();
  const { Fleet } = await import("../../../src/gateway/engines/fleet.ts");
  const { SILENT } = await import("../../support/gateways.ts");
  const fleet = new Fleet({ engines: [engine.name], inFlightMax: 1, waitMs: 1, logger: SILENT });
  onTestFinished(() => fleet.close());
  await fleet.start();
  await until(() => fleet.engines[0]!.status().reason.includes("[gateway] engine_key"));
});

test("engines behind TLS are reached with their authority, and not without it", async () => {
  const folder = testFolder();
  const [cert, key] = ["cert.pem", "key.pem"].map((name) => join(folder, name));
  const how = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=e";
  execFileSync(
    "openssl",
    [...how.split(" "), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key!, "-out", cert!],
    { stdio: "ignore" },
  );
  const server = createServer(
    { cert: readFileSync(cert!), key: readFileSync(key!) },
    (request, response) => {
      if (request.url === "/v1/models") response.end('{"data":[{"id":"m"}]}');
      else response.writeHead(request.url?.startsWith("/is_") === true ? 404 : 200).end("over TLS");
    },
  );
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  onTestFinished(() => {
    server.close().closeAllConnections();
  });
  const engines = [addressOf(`127.0.0.1:${(server.address() as AddressInfo).port}`)];
  const { url } = await gatewayBefore([], { engines, engineCa: cert! });
  expect((await complete(url, false)).text).toBe("over TLS");
  const { url: plain } = await gatewayBefore([], { engines });
  expect((await complete(plain, false)).code).toBe(503);
});
