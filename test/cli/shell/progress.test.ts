// Owns the proof that progress is shown after two seconds, and not too often.
import { expect, test, vi } from "vitest";
import {
  Progress,
  progressLine,
  SpokenProgress,
  whileWaiting,
} from "../../../src/cli/shell/progress.ts";

test("nothing before two seconds, then a line at a time", () => {
  const lines: string[] = [];
  let ms = 0;
  const err = (): void => expect.unreachable("a terminal shows it");
  const progress = new Progress({ err, progress: (line) => void lines.push(line) }, () => ms);
  progress.at(1, 10, "vaults");
  expect(lines).toEqual([]);
  for (ms = 0; ms <= 3000; ms += 50) progress.at(ms, 6000, "vaults");
  expect(lines).toHaveLength(6);
  expect(lines[0]).toMatch(/^\[#{8}-{16}\] 33 %, 4\.0 s left {2}vaults$/);
});

test("without a terminal, a line after two seconds and then every five", () => {
  const said: string[] = [];
  let ms = 0;
  const io = { err: (line: string): void => void said.push(line), progress: () => false };
  const progress = new Progress(io, () => ms);
  for (ms = 0; ms <= 12_000; ms += 100) progress.at(ms, 12_000, "records of 10.0.0.1:50051");
  expect(said).toEqual([
    "records of 10.0.0.1:50051: 16 %, 10 s left",
    "records of 10.0.0.1:50051: 58 %, 5.0 s left",
    "records of 10.0.0.1:50051: 100 %",
  ]);
});

test("a part that takes long is said again, into a pipe, too", async () => {
  vi.useFakeTimers();
  try {
    const said: string[] = [];
    let startedMs = Date.now();
    const io = { err: (line: string): void => void said.push(line), progress: () => false };
    const progress = new Progress(io, () => Date.now() - startedMs);
    progress.at(1, 5, "measuring s3://bucket/x");
    const work = progress.during(() => sleepMs(13_000));
    await vi.advanceTimersByTimeAsync(13_000);
    await work;
    expect(said.map((line) => line.split(",")[0])).toEqual(
      Array<string>(3).fill("measuring s3://bucket/x: 20 %"),
    );
    startedMs = Date.now();
    await vi.advanceTimersByTimeAsync(20_000);
    expect(said).toHaveLength(3);
  } finally {
    vi.useRealTimers();
  }
});

test("what is not known is not made up: no time that is left where parts take unequal times", () => {
  expect(progressLine(0, null, "asking")).toBe(`[${"-".repeat(24)}] 0 %  asking`);
  const said: string[] = [];
  let ms = 0;
  const io = { err: (line: string): void => void said.push(line), progress: () => false };
  const progress = new Progress(io, () => ms);
  // Two quick parts, and one that takes long.
  for (const [atMs, done] of [
    [0, 0],
    [2000, 1],
    [4000, 2],
    [9000, 2],
    [30_000, 2],
    [60_000, 3],
  ] as const) {
    ms = atMs;
    progress.at(done, 4, "measuring");
  }
  expect(said).toEqual([
    "measuring: 25 %",
    "measuring: 50 %",
    "measuring: 50 %",
    "measuring: 75 %",
  ]);
  said.length = 0;
  const even = new Progress(io, () => ms);
  for (const done of [1, 2, 3, 4]) {
    ms += 6000;
    even.at(done, 4, "measuring");
  }
  expect(said[1]).toBe("measuring: 50 %, 12 s left");
});

test("into a pipe steps are said at once, parts every five seconds, and a terminal gets all of them", () => {
  const [said, shown]: [string[], string[]] = [[], []];
  let ms = 0;
  const err = (line: string): void => void said.push(line);
  const piped = new SpokenProgress({ err, progress: () => false }, () => ms);
  piped.step("starting vLLM");
  for (ms = 0; ms < 12_000; ms += 500) piped.at(ms, 12_000, "answers", 12_000 - ms);
  expect(said).toEqual([
    "starting vLLM",
    "5000 of 12000 answers, about 7.0 s left",
    "10000 of 12000 answers, about 2.0 s left",
  ]);
  const terminal = { err, progress: (line: string) => void shown.push(line) };
  new SpokenProgress(terminal, () => ms).at(1, 2, "answers", null);
  expect([shown, said.length]).toEqual([["1 of 2 answers"], 3]);
});

test.each([true, false])(
  "a step tells how long it takes, until its work ends (terminal: %s)",
  async (isTerminal) => {
    vi.useFakeTimers();
    try {
      const [said, shown]: [string[], string[]] = [[], []];
      const begunMs = Date.now();
      const io = {
        err: (line: string): void => void said.push(line),
        progress: (line: string): boolean => isTerminal && shown.push(line) > 0,
      };
      const progress = new SpokenProgress(io, () => Date.now() - begunMs);
      const done = progress.during("starting vLLM", () => sleepMs(12_000));
      await vi.advanceTimersByTimeAsync(12_000);
      await done;
      const told = isTerminal ? shown : said;
      expect(told[0]).toBe("starting vLLM");
      expect(told.at(-1)).toMatch(
        isTerminal ? /^starting vLLM \(1[12].* s\)$/ : /^starting vLLM \(10.* s\)$/,
      );
      expect(isTerminal || told.length === 3).toBe(true);
      const count = told.length;
      await vi.advanceTimersByTimeAsync(12_000);
      expect(told).toHaveLength(count);
    } finally {
      vi.useRealTimers();
    }
  },
);

test("what a command waits for is said once, after two seconds, on a terminal or into a pipe", async () => {
  vi.useFakeTimers();
  try {
    for (const isTerminal of [true, false]) {
      const [said, shown]: [string[], string[]] = [[], []];
      const io = {
        err: (line: string): void => void said.push(line),
        progress: (line: string): boolean => isTerminal && shown.push(line) > 0,
      };
      let waiting = "a:1, b:1";
      const slow = whileWaiting(
        io,
        () => waiting,
        () => sleepMs(5_000),
      );
      await vi.advanceTimersByTimeAsync(1_900);
      expect([...said, ...shown]).toEqual([]);
      waiting = "b:1";
      await vi.advanceTimersByTimeAsync(3_200);
      await slow;
      expect([said, shown]).toEqual(
        isTerminal ? [[], ["waiting for b:1"]] : [["waiting for b:1"], []],
      );
      const quick = whileWaiting(
        io,
        () => "a:1",
        () => sleepMs(1_000),
      );
      await vi.advanceTimersByTimeAsync(4_000);
      await quick;
      expect([...said, ...shown]).toHaveLength(1);
    }
  } finally {
    vi.useRealTimers();
  }
});

const sleepMs = async (ms: number): Promise<void> =>
  await new Promise((resolve) => setTimeout(resolve, ms));
