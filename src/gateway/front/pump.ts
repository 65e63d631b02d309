// Owns the way of an answer from engine to client: bytes untouched, at the pace of the client, and never a whole one made of a part.
import type { ServerResponse } from "node:http";
import type { Readable } from "node:stream";
import { GATEWAY_CLIENT_STALL_MS } from "../../limits/gateway.ts";
import { BROKEN_EVENT } from "./refusal.ts";

/** `gone`: the client left, or takes nothing; `broken`: the engine broke off; `unsent`: it did before the first byte. */
export type Outcome = "whole" | "gone" | "broken" | "unsent";

const LINE_FEED = 10;
const CARRIAGE_RETURN = 13;

/** Whether what was sent so far ends where one event ends and the next may begin. */
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
  /** Writes the head, right before the first byte: an engine that breaks off before that has said nothing yet. */
  begin(): void;
  /** Sees what passes. */
  pass(chunk: Buffer): void;
}

/** Passes `body` on until it ends. */
export function pump(
  body: Readable,
  response: ServerResponse,
  isEvents: boolean,
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
        // A head that cannot be written, from an engine that writes bad ones.
        response.destroy();
      }
    };
    const end = (outcome: Outcome): void => {
      clearTimeout(stalled);
      body.off("data", onData).off("end", onEnd).off("error", onError);
      response.off("close", onClose).off("drain", onDrain);
      // What else it says after this is nobody's concern.
      body.on("error", () => {});
      resolve(outcome);
    };
    const onData = (chunk: Buffer): void => {
      ensureBegun();
      if (isEvents) border.pass(chunk);
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
    // Whoever asked the engine ends that, too: it has to, while there is no body yet.
    const onClose = (): void => end("gone");
    const onError = (): void => {
      end(isBegun ? "broken" : "unsent");
      if (!isBegun) return;
      if (isEvents && border.isAt && !response.destroyed) response.end(BROKEN_EVENT);
      else response.destroy();
    };
    response.once("close", onClose).on("drain", onDrain);
    body.on("data", onData).once("end", onEnd).once("error", onError);
  });
}
