// Owns the proof that progress is visible at all times, on a terminal and in a log.
import { expect, test, vi } from "vitest";
import { DEMO_HEARTBEAT_MS } from "../../../src/base/limits/general.ts";
import { Progress } from "../../../src/extras/demo/progress.ts";

function screen(isTTY: boolean): {
  text: string;
  isTTY: boolean;
  columns: number;
  write(text: string): void;
} {
  return {
    text: "",
    isTTY,
    columns: 60,
    write(text) {
      this.text += text;
    },
  };
}

/** Lets `ms` of made-up time pass inside a step. */
async function stepOf(ms: number, isTTY: boolean): Promise<string> {
  vi.useFakeTimers({
    toFake: ["setTimeout", "clearTimeout", "setInterval", "clearInterval", "performance"],
  });
  try {
    const out = screen(isTTY);
    const work = (): Promise<number> => new Promise((resolve) => void setTimeout(resolve, ms, 7));
    const step = new Progress(out).step("load", work, {
      detail: () => "half",
      result: (value) => `got ${value}`,
    });
    await vi.advanceTimersByTimeAsync(ms);
    expect(await step).toBe(7);
    return out.text;
  } finally {
    vi.useRealTimers();
  }
}

test("in a log: a line at the start, one at every heartbeat, one at the end", async () => {
  const text = await stepOf(2 * DEMO_HEARTBEAT_MS + 100, false);
  expect(text.split("\n")).toEqual([
    "[ 0:00]  load",
    "[ 0:05]  ... load: 5.00 s  half",
    "[ 0:10]  ... load: 10.0 s  half",
    "[ 0:10]  load: got 7 (10.1 s)",
    "",
  ]);
});

test("on a terminal: one line, redrawn in place and never wider than the screen", async () => {
  const text = await stepOf(2_000, true);
  const drawn = text.split("\r\u001B[K");
  expect(drawn.length).toBeGreaterThan(5);
  expect(drawn.at(-1)).toBe("[ 0:02]  load: got 7 (2.00 s)\n");
  for (const line of drawn.slice(0, -1)) expect(line.length).toBeLessThan(60);
});

test("a failed step says so and passes the error on", async () => {
  const out = screen(false);
  const failing = new Progress(out).step("load", () => Promise.reject(new Error("no")));
  await expect(failing).rejects.toThrow("no");
  expect(out.text).toContain("load: failed");
});
