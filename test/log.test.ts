// Owns the proof that logs are JSON for machines and lines for people, and spill neither bytes nor stack traces.
import { Writable } from "node:stream";
import { expect, test } from "vitest";
import { TierkvError } from "../src/errors.ts";
import { createLogger } from "../src/log.ts";
import type { Logger, LogOptions } from "../src/log.ts";

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
  expect(text()).not.toContain("115");
  expect(text()).not.toContain("secret");
});

test("lines below the level are not written", () => {
  const { logger, text } = capture({ level: "warn" });
  logger.info("no");
  logger.warn("yes");
  expect(text()).not.toContain('"no"');
  expect(text()).toContain('"yes"');
});
