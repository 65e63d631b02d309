// Owns an answer whose bytes the core writes to the client's own socket, behind the head and the first bytes that Node writes.
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { GATEWAY_CLIENT_STALL_MS } from "../../base/limits/gateway.ts";
import type { AnswerMeter } from "../../base/native.ts";
import type { EngineAnswer, Passed } from "../engines/calls.ts";
import type { Outcome } from "./pump.ts";

export interface PassingOn {
  /** Writes the head right before the first byte. */
  begin(): void;
  /** Sees the first bytes; null: nobody needs them. */
  hear: ((chunk: Buffer) => void) | null;
}

/** Whether the core can write to this client: it knows no TLS, and before HTTP/1.1 there are no chunks. */
export const takes = (request: IncomingMessage, response: ServerResponse): boolean =>
  request.httpVersion === "1.1" && descriptorOf(response) !== null;

/** Returns the descriptor of the client's socket; null: it has none, or what is written there must be encrypted. */
function descriptorOf({ socket }: ServerResponse): number | null {
  if (socket === null || socket.destroyed || "encrypted" in socket) return null;
  const { _handle: handle } = socket as Socket & { _handle?: { fd?: number } | null };
  const { fd = -1 } = handle ?? {};
  return fd < 0 ? null : fd;
}

/** Passes an answer on. `broken`: ends a stream of events that breaks between two of them; null: no events. */
export async function passOn(
  answer: EngineAnswer,
  response: ServerResponse,
  broken: string | null,
  meter: AnswerMeter | null,
  { begin, hear }: PassingOn,
): Promise<Outcome> {
  const { first, isWhole } = answer;
  try {
    begin();
  } catch {
    // The engine sent headers that cannot be written.
    response.destroy();
  }
  if (response.destroyed) {
    answer.drop();
    return "gone";
  }
  if (hear !== null && first !== "") hear(Buffer.from(first, "latin1"));
  if (isWhole) {
    response.end(first, "latin1");
    return "whole";
  }
  const passed = await passRest(answer, response, meter);
  return finish(passed, response, broken);
}

async function passRest(
  answer: EngineAnswer,
  response: ServerResponse,
  meter: AnswerMeter | null,
): Promise<Passed> {
  const isFlushed = await flush(response, answer.first);
  const descriptor = isFlushed ? descriptorOf(response) : null;
  if (descriptor === null || answer.passTo === null) {
    answer.drop();
    return { outcome: "gone", isAtBorder: false };
  }
  return await answer.passTo({ descriptor, isChunked: response.chunkedEncoding, meter });
}

function finish(
  { outcome, isAtBorder }: Passed,
  response: ServerResponse,
  broken: string | null,
): Outcome {
  if (outcome === "whole") response.end();
  else if (outcome === "broken" && broken !== null && isAtBorder && !response.destroyed) {
    response.end(broken);
  } else response.destroy();
  return outcome;
}

/** Writes the first bytes; resolves when the system has taken them and all before, with false where the client left or stalled. */
function flush(response: ServerResponse, first: string): Promise<boolean> {
  return new Promise((resolve) => {
    const stalled = setTimeout(() => response.destroy(), GATEWAY_CLIENT_STALL_MS);
    const end = (isFlushed: boolean): void => {
      clearTimeout(stalled);
      response.off("close", onClose);
      resolve(isFlushed);
    };
    const onClose = (): void => end(false);
    response.once("close", onClose);
    response.write(first, "latin1", (error) => end(error === null || error === undefined));
  });
}
