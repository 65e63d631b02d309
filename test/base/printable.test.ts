// Owns the proof that nothing that comes from elsewhere steers the terminal it is shown on.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { Writable } from "node:stream";
import { expect, test } from "vitest";
import { TierkvError } from "../../src/base/errors.ts";
import { createLogger } from "../../src/base/log.ts";
import { printable } from "../../src/base/printable.ts";
import { runInside } from "../support/command-line.ts";
import { testDirectory } from "../support/sidecars.ts";

const EVIL = "a\u001b[2J\u009b1m\u007f\r\u202eb\u2066c\u2028d\0";
const SAFE = "a\\u001b[2J\\u009b1m\\u007f\\u000d\\u202eb\\u2066c\\u2028d\\u0000";

test("controls are shown, and everything else stays as it is", () => {
  expect(printable(EVIL)).toBe(SAFE);
  expect(printable("plain\ttext\nüñ漢 🙂")).toBe("plain\ttext\nüñ漢 🙂");
  expect(JSON.parse(printable(JSON.stringify({ "a\u009b": EVIL })))).toEqual({ "a\u009b": EVIL });
});

test("errors, and what a command says", async () => {
  expect(new TierkvError("USAGE", { reason: EVIL }).message).toBe(SAFE);
  const good = join(testDirectory(), "a\u009b.toml");
  writeFileSync(good, "");
  const check = (path: string): ReturnType<typeof runInside> =>
    runInside(["config", "check", "--config", path]);
  expect((await check(good)).stdout).toContain("a\\u009b.toml");
  const bad = join(testDirectory(), "b\u009b.toml");
  writeFileSync(bad, '[cluster]\n"\\u009b" = 1\n');
  const { exitCode, stderr } = await check(bad);
  expect(exitCode).toBe(2);
  expect(stderr).toContain("b\\u009b.toml");
  expect(stderr).not.toContain("\u009b");
});

test.each([true, false])("lines of a log (for people: %s)", (tty) => {
  const lines: string[] = [];
  const destination = new Writable({
    write(chunk: Buffer, _encoding, done): void {
      lines.push(chunk.toString());
      done();
    },
  });
  const logger = createLogger("test", { level: "info", tty, destination });
  logger.info({ client: EVIL, nested: { name: EVIL } }, "hello");
  expect(lines.join("").replaceAll("\n", "")).toBe(printable(lines.join("").replaceAll("\n", "")));
  expect(lines.join("")).toContain("hello");
});
