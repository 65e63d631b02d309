// Owns passing an answer from engine to client: unchanged bytes, at the client's pace, and a broken answer never looks whole.
import type { ServerResponse } from "node:http";
import type { Readable } from "node:stream";
import { GATEWAY_CLIENT_STALL_MS } from "../../base/limits/gateway.ts";
import { Leading } from "./leading.ts";

/** `gone`: the client left or stalled; `broken`: the engine broke off; `unsent`: it did before the first byte. */
export type Outcome = "whole" | "gone" | "broken" | "unsent";

const LINE_FEED = 10;
const CARRIAGE_RETURN = 13;

/** Tracks whether the bytes sent so far end between two events. */
class EventBorder {
  #isLineEmpty = true;
  #isAt = true;

  get isAt(): boolean {
    return this.#isAt;
  }

  pass(chunk: Buffer): void {
    for (let at = Math.max(0, chunk.length - 4); at < chunk.length; at += 1) {
      const byte = chunk[at];
      if (byte === CARRIAGE_RETURN) continue;
      this.#isAt = byte === LINE_FEED && this.#isLineEmpty;
      this.#isLineEmpty = byte === LINE_FEED;
    }
  }
}

export interface Passing {
  /** Writes the headers right before the first byte; a comment before the first event is no byte of the answer. */
  begin(): void;
  /** Sees each chunk that passes. */
  pass(chunk: Buffer): void;
}

/** Passes `body` on until it ends. `brokenEvent`: ends a stream of events that breaks between two of them; null: no events. */
export function pump(
  body: Readable,
  response: ServerResponse,
  brokenEvent: string | null,
  { begin, pass }: Passing,
): Promise<Outcome> {
  return new Promise((resolve) => {
    const border = new EventBorder();
    let isBegun = false;
    let stalled: NodeJS.Timeout | undefined;
    const ensureBegun = (): void => {
      if (isBegun) return;
      isBegun = true;
      try {
        begin();
      } catch {
        // The engine sent headers that cannot be written.
        response.destroy();
      }
    };
    const end = (outcome: Outcome): void => {
      clearTimeout(stalled);
      body.off("data", onData).off("end", onEnd).off("error", onError);
      response.off("close", onClose).off("drain", onDrain);
      // Later errors of the body are ignored, because the outcome is decided.
      body.on("error", () => {});
      resolve(outcome);
    };
    const leading = brokenEvent === null ? null : new Leading();
    const onData = (given: Buffer): void => {
      const chunk = isBegun || leading === null ? given : leading.take(given);
      if (chunk === null) return;
      ensureBegun();
      if (brokenEvent !== null) border.pass(chunk);
      pass(chunk);
      if (response.write(chunk)) return;
      body.pause();
      stalled = setTimeout(() => response.destroy(), GATEWAY_CLIENT_STALL_MS);
    };
    const onDrain = (): void => {
      clearTimeout(stalled);
      body.resume();
    };
    const onEnd = (): void => {
      ensureBegun();
      response.end();
      end("whole");
    };
    // The caller aborts the engine's request, because it must do so before a body exists, too.
    const onClose = (): void => end("gone");
    const onError = (): void => {
      end(isBegun ? "broken" : "unsent");
      if (!isBegun) return;
      if (brokenEvent !== null && border.isAt && !response.destroyed) response.end(brokenEvent);
      else response.destroy();
    };
    response.once("close", onClose).on("drain", onDrain);
    body.on("data", onData).once("end", onEnd).once("error", onError);
  });
}
