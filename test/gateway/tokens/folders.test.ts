// Owns the proof that a folder which cannot be opened is tried again, ever more seldom, said once a reason, and takes no other's place, and that one which nobody uses is closed.
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pino } from "pino";
import { beforeEach, expect, onTestFinished, test, vi } from "vitest";
import {
  GATEWAY_FOLDER_RETRY_MAX_MS,
  GATEWAY_FOLDER_RETRY_MIN_MS,
  GATEWAY_FOLDERS_FAILED_MAX,
  GATEWAY_TOKENIZER_IDLE_MS,
  GATEWAY_TOKENIZERS_MAX,
} from "../../../src/base/limits/gateway.ts";
import { Folders } from "../../../src/gateway/tokens/folders.ts";
import type { Failed, Opened } from "../../../src/gateway/tokens/folders.ts";
import { testFolder } from "../../support/gateways.ts";
import { writeTokenizer } from "../../support/tokenizers.ts";

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["performance", "setInterval", "clearInterval"] });
  onTestFinished(() => void vi.useRealTimers());
});

/** With what it logs. */
function foldersHere(): { folders: Folders; said: string[] } {
  const said: string[] = [];
  const write = (line: string): void =>
    void said.push((JSON.parse(line) as { reason: string }).reason);
  const folders = new Folders(pino({ level: "warn" }, { write }));
  onTestFinished(() => folders.close());
  return { folders, said };
}

test("a folder is read again after a pause that doubles, and each new reason is said once", async () => {
  const { folders, said } = foldersHere();
  const folder = testFolder();
  const file = join(folder, "tokenizer.json");
  const reasonNow = async (): Promise<string> => {
    await folders.open(folder);
    return folders.failedOf(folder)?.reason ?? "";
  };
  const missing = await reasonNow();
  expect(missing).toContain("No such file");
  let pauseMs = GATEWAY_FOLDER_RETRY_MIN_MS;
  for (let tries = 1; tries < 4; tries += 1, pauseMs *= 2) {
    vi.advanceTimersByTime(pauseMs - 1);
    expect(folders.failedOf(folder)).toMatchObject({ pauseMs, reason: missing });
    expect(await reasonNow()).toBe(missing);
    expect(folders.failedOf(folder)).toMatchObject({ pauseMs });
    vi.advanceTimersByTime(1);
    expect(await reasonNow()).toBe(missing);
  }
  expect(said).toEqual([missing]);
  mkdirSync(file);
  expect(await reasonNow()).toBe(missing);
  vi.advanceTimersByTime(pauseMs);
  const unreadable = await reasonNow();
  expect(unreadable).not.toBe(missing);
  rmSync(file, { recursive: true });
  writeFileSync(file, '{ "version": ');
  vi.advanceTimersByTime(2 * pauseMs);
  const broken = await reasonNow();
  expect(said).toEqual([missing, unreadable, broken]);
  for (let tries = 0; tries < 10; tries += 1) {
    vi.advanceTimersByTime(GATEWAY_FOLDER_RETRY_MAX_MS);
    await reasonNow();
  }
  expect(folders.failedOf(folder)).toMatchObject({ pauseMs: GATEWAY_FOLDER_RETRY_MAX_MS });
  expect(said).toHaveLength(3);
  writeTokenizer(folder);
  vi.advanceTimersByTime(GATEWAY_FOLDER_RETRY_MAX_MS);
  expect(await reasonNow()).toBe("");
  expect(await folders.openedOf(folder)!.encode("a", true)).toHaveLength(1);
});

test("two who ask at once for one folder have it read once, and get the same", async () => {
  const { folders } = foldersHere();
  const good = writeTokenizer(join(testFolder(), "good"));
  const [one, two] = await Promise.all([folders.open(good), folders.open(good)]);
  expect(one).toBe(two);
  expect(folders.openedOf(good)).toBe(one);
  const bad = testFolder();
  const [first, second] = await Promise.all([folders.open(bad), folders.open(bad)]);
  expect(first).toBe(second);
  expect(folders.failedOf(bad)).toMatchObject({ pauseMs: GATEWAY_FOLDER_RETRY_MIN_MS });
});

test("a folder whose files changed is read anew, and one whose files did not is not", async () => {
  const { folders } = foldersHere();
  const folder = writeTokenizer(join(testFolder(), "model"));
  const first = (await folders.open(folder)) as Opened;
  expect(await folders.open(folder)).toBe(first);
  writeFileSync(join(folder, "chat_template.jinja"), "another");
  const second = (await folders.open(folder)) as Opened;
  expect(second).not.toBe(first);
  expect(folders.openedOf(folder)).toBe(second);
  await expect(first.encode("a", true)).rejects.toThrow();
  writeFileSync(join(folder, "tokenizer.json"), "half of it");
  expect(await folders.open(folder)).toHaveProperty("reason");
  expect(await second.encode("a", true)).toHaveLength(1);
});

test("folders that failed take no place of those that open, and no more than so many are remembered", async () => {
  const { folders } = foldersHere();
  const parent = testFolder();
  for (let at = 0; at <= GATEWAY_FOLDERS_FAILED_MAX; at += 1) {
    await folders.open(join(parent, `none-${at}`));
  }
  expect(folders.failedOf(join(parent, "none-0"))).toBeNull();
  expect(folders.failedOf(join(parent, "none-1"))).not.toBeNull();
  const open = Array.from({ length: GATEWAY_TOKENIZERS_MAX + 1 }, (_none, at) =>
    folders.open(writeTokenizer(join(parent, `some-${at}`))),
  );
  const [last, ...others] = (await Promise.all(open)).toReversed();
  expect((last as Failed).reason).toContain("tokenizers are open");
  expect(others.filter((one) => "reason" in one)).toEqual([]);
});

test("a tokenizer that nobody uses makes room for another one; what it makes is finished, and it opens again", async () => {
  const { folders } = foldersHere();
  const parent = testFolder();
  const all = Array.from({ length: GATEWAY_TOKENIZERS_MAX }, (_none, at) =>
    writeTokenizer(join(parent, `some-${at}`)),
  );
  const [used = "", unused = ""] = all;
  const opened = await Promise.all(all.map((folder) => folders.open(folder)));
  const other = writeTokenizer(join(parent, "other"));
  expect(await folders.open(other)).toHaveProperty("reason");
  vi.advanceTimersByTime(GATEWAY_TOKENIZER_IDLE_MS - 1);
  expect(folders.openedOf(used)).toBe(opened[0]);
  const making = (opened[1] as Opened).encode("a".repeat(10_000), false);
  vi.advanceTimersByTime(1);
  expect(folders.openedOf(used)).toBe(opened[0]);
  expect(folders.openedOf(unused)).toBeNull();
  expect(await making).toHaveLength(10_000);
  await expect((opened[1] as Opened).encode("a", false)).rejects.toThrow();
  expect(await folders.open(other)).not.toHaveProperty("reason");
  const again = (await folders.open(unused)) as Opened;
  expect(again).not.toBe(opened[1]);
  expect(await again.encode("a", false)).toHaveLength(1);
});
