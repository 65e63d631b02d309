// Owns gateways for tests: before simulated engines, with clients that read whole answers or streams.
import { createHash } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import type { ClientRequest, IncomingMessage, OutgoingHttpHeaders } from "node:http";
import { request as requestOverTls } from "node:https";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { pino } from "pino";
import { onTestFinished } from "vitest";
import { splitAddress } from "../../src/base/hosts.ts";
import type { Logger } from "../../src/base/log.ts";
import type { Address, GatewayConfig } from "../../src/config/config.ts";
import { startScrape } from "../../src/exposition/telemetry.ts";
import type { Look } from "../../src/gateway/engines/discovery.ts";
import { startGateway } from "../../src/gateway/gateway.ts";
import type { RunningGateway, Scrape, Vaults } from "../../src/gateway/gateway.ts";
import { SimEngine } from "./sim-engine.ts";
import type { SimPublisher } from "./sim-publisher.ts";

export const SILENT = pino({ level: "silent" });

export interface Scene {
  engines: SimEngine[];
  url: string;
  socket: string;
  extProc: string | null;
  /** Engines as the gateway lists them once it listens. */
  known: readonly string[];
  close(): Promise<void>;
}

/** Starts a gateway before engines of these models; all end with the test. */
export async function gatewayBefore(
  models: readonly (readonly string[])[],
  given: Partial<GatewayConfig> = {},
  publishers: readonly SimPublisher[] = [],
  prefill: readonly number[] = [],
  vaults: Vaults = () => [],
  look: Look | null = null,
  logger: Logger = SILENT,
): Promise<Scene> {
  const engines = models.map((names) => new SimEngine(names));
  for (const engine of engines) await engine.start();
  const socket = join(testFolder(), "gateway.sock");
  const config: GatewayConfig = {
    listen: { host: "127.0.0.1", port: 0, text: "127.0.0.1:0" },
    lan: false,
    discover: null,
    discoverEvents: null,
    discoverReplays: null,
    sequences: false,
    extProc: null,
    keys: null,
    tlsCert: null,
    tlsKey: null,
    engineKey: null,
    engineCa: null,
    allowedOrigins: ["*"],
    showEngine: true,
    engines: engines.map(({ name }) => addressOf(name)),
    events: publishers.map(({ events }) => addressOf(events)),
    replays: publishers.map(({ replays }) => addressOf(replays)),
    preset: "round-robin",
    inFlightMax: 256,
    waitMs: 10_000,
    ttftMs: null,
    prefill: prefill.map((at) => addressOf(engines[at]!.name)),
    prefillTokens: 2048,
    tokenizeMs: 60_000,
    lookupMs: 0,
    tokenizers: new Map(),
    objectives: new Map(),
    leaveMs: 0,
    drainMs: 30_000,
    metricsListen: null,
    metricsLan: false,
    socket,
    indexFile: join(dirname(socket), "index"),
    ...given,
  };
  let started: RunningGateway | null = null;
  onTestFinished(async () => {
    const ended = started?.close();
    for (const engine of engines) await engine.kill().catch(() => {});
    await ended;
  });
  const scrape: Scrape = (read, trouble) =>
    startScrape("gateway", config.metricsListen, logger, read, trouble);
  const gateway = await startGateway(config, logger, look, vaults, scrape);
  started = gateway;
  return {
    engines,
    url: gateway.url,
    extProc: gateway.extProc,
    known: gateway.engines,
    socket,
    close: () => gateway.close(),
  };
}

export const addressOf = (text: string): Address => ({ ...splitAddress(text), text });

/** Returns a folder of mode 0700, removed after the test. */
export function testFolder(): string {
  const path = mkdtempSync(join(tmpdir(), "gateway-"));
  onTestFinished(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

/** Writes a key file of lines `NAME KEY` with options; `*` lines and comments stay unchanged. */
export function keyFile(...lines: readonly string[]): string {
  const path = join(testFolder(), "keys");
  const written = lines.map((line) => {
    const [name = "", key, ...rest] = line.split(" ");
    if (key === undefined || name === "*" || name === "#") return line;
    return [name, createHash("sha256").update(key).digest("hex"), ...rest].join(" ");
  });
  writeFileSync(path, `${written.join("\n")}\n`, { mode: 0o600 });
  return path;
}

export interface Answer {
  code: number;
  headers: IncomingMessage["headers"];
  text: string;
  /** Whether the answer broke off. */
  isCut: boolean;
}

/** Sends a request; `onChunk` sees the pieces as they come. */
export function call(
  url: string,
  path: string,
  options: {
    method?: string;
    body?: string | Buffer;
    headers?: OutgoingHttpHeaders;
    /** CA of an `https:` address. */
    ca?: Buffer;
    onRequest?: (asked: ClientRequest) => void;
    onChunk?: (chunk: string) => void;
  } = {},
): Promise<Answer> {
  const { body, headers = {}, ca, onRequest, onChunk } = options;
  const method = options.method ?? (body === undefined ? "GET" : "POST");
  return new Promise((resolve, reject) => {
    const take = (answer: IncomingMessage): void => {
      let text = "";
      const end = (isCut: boolean): void =>
        resolve({ code: answer.statusCode ?? 0, headers: answer.headers, text, isCut });
      answer.setEncoding("utf8").on("data", (chunk: string) => {
        text += chunk;
        onChunk?.(chunk);
      });
      answer.on("end", () => end(false)).on("error", () => end(true));
    };
    const given = { method, agent: false, headers } as const;
    const to = `${url}${path}`;
    const asked =
      ca === undefined ? request(to, given, take) : requestOverTls(to, { ...given, ca }, take);
    onRequest?.(asked);
    asked.on("error", reject).end(body);
  });
}

export function complete(url: string, isStream: boolean, model = "m"): Promise<Answer> {
  const body = JSON.stringify({ model, prompt: "p", ...(isStream ? { stream: true } : {}) });
  return call(url, "/v1/completions", { body, headers: { "content-type": "application/json" } });
}

/** Resolves when `is` holds; the test's own time-out bounds the wait. */
export async function until(is: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await is())) await new Promise((resolve) => setTimeout(resolve, 5));
}
