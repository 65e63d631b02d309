// Owns the proof that logs are JSON for machines and lines for people, and spill neither bytes nor stack traces.
import { execFile } from "node:child_process";
import { Writable } from "node:stream";
import { promisify } from "node:util";
import { expect, test, vi } from "vitest";
import { TierkvError } from "../../src/base/errors.ts";
import { LOG_KINDS_MAX, LOG_LINES_BURST, LOG_REFILL_MS } from "../../src/base/limits/access.ts";
import { createLogger } from "../../src/base/log.ts";
import type { Logger, LogOptions } from "../../src/base/log.ts";
import { newVaultCounters } from "../../src/base/metrics.ts";
import { startVault } from "../../src/vault/server.ts";
import { closeAfterTest, MIB, openClient, SOON_MS } from "../support/vaults.ts";

function capture(options: Partial<LogOptions>): { logger: Logger; text: () => string } {
  const chunks: string[] = [];
  const destination = new Writable({
    write(chunk: Buffer, _encoding, done): void {
      chunks.push(chunk.toString());
      done();
    },
  });
  const logger = createLogger("vault", { level: "info", tty: false, destination, ...options });
  return { logger, text: () => chunks.join("") };
}

test("a machine gets one JSON object a line, with level, time and process by name", () => {
  const { logger, text } = capture({});
  logger.info({ address: "a:1" }, "vault ready");
  const line = JSON.parse(text()) as Record<string, unknown>;
  expect(line).toMatchObject({
    level: "info",
    name: "vault",
    pid: process.pid,
    address: "a:1",
    msg: "vault ready",
  });
  expect(line["time"]).toMatch(/^\d{4}-\d\d-\d\dT/);
});

test("a person gets a line with level, process and text", () => {
  const { logger, text } = capture({ tty: true });
  logger.warn({ address: "a:1" }, "not encrypted");
  expect(text()).toMatch(
    /^\[\d\d:\d\d:\d\d\.\d{3}\] WARN: vault: not encrypted \{"address":"a:1"\}\n$/,
  );
});

test.each([true, false])("an error is a code and a line, never a stack (terminal: %s)", (tty) => {
  const { logger, text } = capture({ tty });
  logger.error({ err: new TierkvError("CLOSED", { what: "it" }) }, "failed");
  logger.error({ err: new Error("one\ntwo") }, "failed");
  logger.error(new Error("bare"));
  expect(text()).toContain("CLOSED");
  expect(text()).toContain("it is closed");
  expect(text()).toContain("one two");
  expect(text()).toContain("bare");
  expect(text()).not.toMatch(/\bat .*\.ts|stack/);
});

test.each([true, false])("bytes are told by their number only (terminal: %s)", (tty) => {
  const { logger, text } = capture({ tty });
  logger.info({ data: Buffer.from("secret"), view: new Uint8Array(3), n: 1 }, "got");
  expect(text()).toContain("<6 bytes>");
  expect(text()).toContain("<3 bytes>");
  expect(text()).not.toMatch(/115\D{1,3}101/);
  expect(text()).not.toContain("secret");
});

test.each([true, false])(
  "a field of any kind, or without a value, is logged (terminal: %s)",
  (tty) => {
    const { logger, text } = capture({ tty });
    const fields = {
      none: undefined,
      nothing: null,
      yes: true,
      n: 1n,
      list: [undefined, { in: undefined }],
    };
    logger.warn(fields, "a path to the vault is out of use");
    expect(text()).toContain("a path to the vault is out of use");
    expect(text()).toMatch(/"nothing":null.*"yes":true/);
  },
);

test("lines below the level are not written", () => {
  const { logger, text } = capture({ level: "warn" });
  logger.info("no");
  logger.warn("yes");
  expect(text()).not.toContain('"no"');
  expect(text()).toContain('"yes"');
});

test.each([
  ["", true],
  ["1", false],
])("on a terminal, NO_COLOR=%j: lines in colour is %j", async (value, isColoured) => {
  const log = new URL("../../dist/base/log.js", import.meta.url).href;
  const code = `const { createLogger } = await import(${JSON.stringify(log)}); createLogger("vault", { level: "info" }).warn("said");`;
  // The terminal is Python's: Node has none to give.
  const inTerminal = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";
  const argv = ["-c", inTerminal, process.execPath, "--input-type=module", "-e", code];
  const env = { PATH: process.env["PATH"] ?? "", NO_COLOR: value };
  const { stdout } = await promisify(execFile)("python3", argv, { env });
  expect(stdout).toContain("vault: said");
  expect(stdout.includes("\u001B[")).toBe(isColoured);
});

test("what is said a thousand times is said a few times, and the rest counted; other kinds, and debug lines, are not touched", () => {
  const now = vi.spyOn(performance, "now");
  let ms = 5000;
  now.mockImplementation(() => ms);
  const { logger, text } = capture({ level: "debug" });
  for (let turn = 0; turn < 1000; turn += 1) {
    logger.warn({ turn }, "a peer's doing");
    logger.debug({ turn }, "asked for");
  }
  logger.error("another kind");
  const count = (words: string): number => text().split(words).length - 1;
  expect(count("a peer's doing")).toBe(LOG_LINES_BURST);
  expect(count("asked for")).toBe(1000);
  expect(count("another kind")).toBe(1);
  ms += LOG_REFILL_MS;
  logger.warn({ turn: "last" }, "a peer's doing");
  logger.warn({ turn: "not this one" }, "a peer's doing");
  expect(text()).toMatch(/"turn":"last","suppressed":900,"msg":"a peer's doing"/);
  expect(count("a peer's doing")).toBe(LOG_LINES_BURST + 1);
  now.mockRestore();
});

test("a vault's callers make it say little, however often they are refused", async () => {
  const { logger, text } = capture({});
  const listen = { host: "127.0.0.1", port: 0, text: "127.0.0.1:0" };
  const config = { listen, maxBytes: 16 * MIB };
  const counters = newVaultCounters();
  const vault = await startVault({ config, recordClass: "kv", logger, counters });
  closeAfterTest(vault);
  const client = openClient(vault, "kv", { lanes: 0 });
  for (let round = 0; round < 20; round += 1) {
    const calls = Array.from({ length: 50 }, () =>
      client.flush(Buffer.alloc(31) as never, SOON_MS).catch(() => {}),
    );
    await Promise.all(calls);
  }
  expect(counters.get("calls_refused")).toBe(1000);
  const lines = text().split("call refused").length - 1;
  expect(lines).toBeGreaterThanOrEqual(LOG_LINES_BURST);
  expect(lines).toBeLessThan(500);
});

test("kinds are bounded: those beyond share one", () => {
  const { logger, text } = capture({});
  for (let kind = 0; kind < 3 * LOG_KINDS_MAX; kind += 1) logger.info(`kind ${kind}`);
  expect(text().split("kind ").length - 1).toBe(LOG_KINDS_MAX + LOG_LINES_BURST);
});
