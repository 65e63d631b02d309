// Owns the tests of sources of user activity: each alone, and all together.
import { chmodSync, mkdirSync, utimesSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, expect, test, vi } from "vitest";
import { wallClockMs } from "../../../src/base/time.ts";
import { othersLoad } from "../../../src/vault/user/load.ts";
import { desktop, IOHID, LOGIND } from "../../../src/vault/user/sessions.ts";
import { together } from "../../../src/vault/user/source.ts";
import { terminals } from "../../../src/vault/user/terminals.ts";
import { userOfMachine } from "../../../src/vault/user/user.ts";
import { testDirectory } from "../../support/sidecars.ts";

const MINUTE_MS = 60_000;

afterEach(() => {
  vi.useRealTimers();
});

function dated(path: string, agoMs: number): void {
  writeFileSync(path, "");
  const at = (wallClockMs() - agoMs) / 1000;
  utimesSync(path, at, wallClockMs() / 1000);
}

test("F89 the terminal with the last input counts, what was written to one does not", () => {
  const folder = testDirectory();
  dated(join(folder, "0"), 60 * MINUTE_MS);
  dated(join(folder, "1"), 10 * MINUTE_MS);
  dated(join(folder, "ptmx"), 0);
  const source = terminals([
    { folder, names: /^\d+$/ },
    { folder: join(folder, "none"), names: /^tty/ },
  ]);
  expect(source.idleMs()).toBeGreaterThanOrEqual(10 * MINUTE_MS - 1000);
  expect(source.idleMs()).toBeLessThan(11 * MINUTE_MS);
});

test("where no terminal is, nobody was seen", () => {
  expect(terminals([{ folder: testDirectory(), names: /^\d+$/ }]).idleMs()).toBe(Infinity);
});

test("what logind and IOHIDSystem answer is read", () => {
  const sinceUs = (wallClockMs() - 5 * MINUTE_MS) * 1e3;
  expect(LOGIND.read("IdleHint=no\nIdleSinceHint=1764000000000000\n")).toBe(0);
  const idleMs = LOGIND.read(`IdleHint=yes\nIdleSinceHint=${sinceUs}\n`);
  expect(idleMs).toBeGreaterThanOrEqual(5 * MINUTE_MS);
  expect(idleMs).toBeLessThan(6 * MINUTE_MS);
  expect(LOGIND.read("IdleHint=yes\nIdleSinceHint=0\n")).toBe(Infinity);
  expect(LOGIND.read("")).toBeNull();
  expect(IOHID.read('    | |   "HIDIdleTime" = 2500000000\n')).toBe(2500);
  expect(IOHID.read("")).toBeNull();
});

test("the desktop is asked again and again, and left alone where it says nothing", async () => {
  const folder = testDirectory();
  mkdirSync(folder, { recursive: true });
  const program = join(folder, "ask");
  const answers = (text: string): void => {
    writeFileSync(program, `#!/bin/sh\necho '${text}'\n`);
    chmodSync(program, 0o755);
  };
  const read = (answer: string): number | null => (answer.trim() === "" ? null : Number(answer));
  answers("");
  expect(await desktop({ name: "test", command: [program], read })).toBeNull();
  expect(await desktop({ name: "test", command: [join(folder, "no")], read })).toBeNull();
  answers("600000");
  const source = await desktop({ name: "test", command: [program], read });
  expect(source?.idleMs()).toBeGreaterThanOrEqual(600_000);
  answers("0");
  await vi.waitFor(() => expect(source?.idleMs()).toBeLessThan(600_000), 20_000);
  source?.close();
});

/** Writes /proc/stat with these ticks of programs, niced ones, the kernel and idle. */
function stat(path: string, user: number, nice: number, system: number, idle: number): void {
  writeFileSync(path, `cpu  ${user} ${nice} ${system} ${idle} 0 0 0 0 0 0\ncpu0 1 1 1 1\n`);
}

test("others' programs count from half of all processors on; one's own, niced ones and idle time do not", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  const path = join(testDirectory(), "stat");
  let own = 0;
  stat(path, 0, 0, 0, 0);
  const source = othersLoad(path, () => own);
  expect(source?.idleMs()).toBe(Infinity);
  stat(path, 400, 900, 50, 0);
  await vi.advanceTimersToNextTimerAsync();
  expect(source?.idleMs()).toBe(Infinity);
  own = 900;
  stat(path, 1300, 900, 150, 0);
  await vi.advanceTimersToNextTimerAsync();
  expect(source?.idleMs()).toBe(Infinity);
  stat(path, 1900, 900, 150, 500);
  await vi.advanceTimersToNextTimerAsync();
  expect(source?.idleMs()).toBeLessThan(MINUTE_MS);
  source?.close();
  expect(othersLoad(join(path, "none"))).toBeNull();
});

test("whichever source saw the user last", () => {
  const closed: string[] = [];
  const one = (name: string, ms: number): Parameters<typeof together>[0][number] => ({
    name,
    idleMs: () => ms,
    close: () => void closed.push(name),
  });
  const all = together([one("a", 5), one("b", Infinity)]);
  expect([all.name, all.idleMs()]).toEqual(["a, b", 5]);
  all.close();
  expect(closed).toEqual(["a", "b"]);
});

test("this machine tells something", async () => {
  const user = await userOfMachine();
  expect(user.name).toContain("terminals");
  expect(user.idleMs()).toBeGreaterThanOrEqual(0);
  user.close();
});
