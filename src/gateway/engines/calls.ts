// Owns the form of a request to an engine and of its answer, whichever client carries them.
import type { IncomingHttpHeaders } from "node:http";
import type { Readable } from "node:stream";
import type { AnswerMeter } from "../../base/native.ts";
import type { Abortable } from "./ending.ts";

export interface EngineRequest {
  method: string;
  /** Path and query. */
  path: string;
  /** Names and values in turn. */
  headers?: readonly string[];
  body?: Buffer | string | null;
  /** Ends the request, or its answer, with its reason. */
  signal?: Abortable;
}

/** How an answer that was passed on ended. `gone`: the client left or stalled; `broken`: the engine broke off. */
export interface Passed {
  outcome: "whole" | "gone" | "broken";
  /** Whether the bytes passed end between two events. */
  isAtBorder: boolean;
}

/** A client's socket that takes a body behind a head that was written. */
export interface Taker {
  /** Descriptor, open during the call. */
  descriptor: number;
  /** Whether the body goes in chunks; the last one, of no bytes, is left to the caller. */
  isChunked: boolean;
  /** Counts what passes; null: nobody asks. */
  meter: AnswerMeter | null;
}

/** An answer, once something of its body has come; of a stream of events as the engine wrote it, the first event's bytes. */
export interface EngineAnswer {
  readonly statusCode: number;
  readonly headers: IncomingHttpHeaders;
  /** First bytes, a character for each, without comments before the first event; empty: none yet. */
  readonly first: string;
  /** Whether `first` is the whole body. */
  readonly isWhole: boolean;
  /** Tokens of a whole answer, as it reports; null: not known. */
  readonly tokens: number | null;
  /** Returns the body from its first byte on. Call it, `passTo` or `drop` once. */
  body(): Readable;
  /** Passes on what follows `first`. null: this client cannot. */
  readonly passTo: ((taker: Taker) => Promise<Passed>) | null;
  /** Ends the answer unread. */
  drop(): void;
}

/** An answer's text; null: it has more bytes than may be. */
export interface EngineText {
  statusCode: number;
  text: string | null;
}

/** A prompt's token ids in an answer; null: it has none by which the prompt's blocks are known, or more bytes than may be. */
export interface EngineIds {
  statusCode: number;
  ids: Uint32Array | null;
}

/** Connections to one engine. A request fails with an error whose `code` is Node's name for it, or with its signal's reason. */
export interface Calls {
  request(request: EngineRequest): Promise<EngineAnswer>;
  /** Reads the whole answer as text of at most `most` bytes. */
  text(request: EngineRequest, most: number): Promise<EngineText>;
  /** Reads the token ids in an answer of at most `most` bytes. */
  ids(request: EngineRequest, most: number): Promise<EngineIds>;
  /** Grows with each piece of an answer that comes, as far as the client counts them. */
  readonly signs: number;
  /** Resolves when the open requests have ended. */
  close(): Promise<void>;
  /** Fails the open requests. */
  destroy(): Promise<void>;
}
