// Owns the proof that a cancellation is the part of an AbortSignal that calls use.
import { expect, test } from "vitest";
import { Cancellation } from "../../src/base/cancellation.ts";
import type { CancelSignal } from "../../src/base/cancellation.ts";

/** What listeners hear, and what the signal says, of one that fires and of both sorts alike. */
function heardOf(signal: CancelSignal, abort: (reason?: unknown) => void): unknown[] {
  const heard: unknown[] = [signal.aborted, signal.reason];
  const removed = (): void => void heard.push("removed");
  signal.addEventListener("abort", () => heard.push("first"), { once: true });
  signal.addEventListener("abort", removed, { once: true });
  signal.removeEventListener("abort", removed);
  abort("over");
  abort("again");
  signal.addEventListener("abort", () => heard.push("late"), { once: true });
  return [...heard, signal.aborted, signal.reason];
}

test("it fires once, with its reason, and late listeners hear nothing, as of an AbortController", () => {
  const [controller, ours] = [new AbortController(), new Cancellation()];
  const expected = heardOf(controller.signal, (reason) => controller.abort(reason));
  expect(expected).toEqual([false, undefined, "first", true, "over"]);
  expect(heardOf(ours, (reason) => ours.abort(reason))).toEqual(expected);
});

test("without a reason it says that the call was cancelled", () => {
  const ours = new Cancellation();
  ours.abort();
  expect(ours.reason).toMatchObject({ code: "CANCELLED" });
});
