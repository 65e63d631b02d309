// Owns requests that the core's HTTP client carries: one wake-up for an answer's beginning, none for what is passed on.
import type { IncomingHttpHeaders } from "node:http";
import { Readable } from "node:stream";
import { toTierkvError } from "../../base/errors.ts";
import { unixPath } from "../../base/hosts.ts";
import {
  GATEWAY_CLIENT_STALL_MS,
  GATEWAY_CONNECT_MS,
  GATEWAY_KEEPALIVE_MS,
} from "../../base/limits/gateway.ts";
import { HttpCore } from "../../base/native.ts";
import type {
  Calls,
  EngineAnswer,
  EngineIds,
  EngineRequest,
  EngineText,
  Passed,
  Taker,
} from "./calls.ts";
import type { Abortable } from "./ending.ts";

/** Kinds of news, as `crates/node/src/http.rs` numbers them. */
const BEGUN = 0;
const WHOLE = 1;
const PIECE = 2;
const LAST = 3;
const IDS = 6;

/** Outcomes by their number. */
const OUTCOMES: readonly Passed["outcome"][] = ["whole", "gone", "gone", "broken"];

/** Nothing that a head could be split with; the core does not look. */
const UNSAFE = /[\r\n\0]/;
const WITH_BODY: ReadonlySet<string> = new Set(["POST", "PUT", "PATCH"]);

/** Forms in which an answer is wanted, as the core numbers them. */
const AS_PIECES = 0;
const AS_TEXT = 1;
const AS_IDS = 2;
type Form = typeof AS_PIECES | typeof AS_TEXT | typeof AS_IDS;

type NewsBody = string | Buffer | Uint32Array;

/** Hears of news. Plain arguments, because each request has two to five news. */
type Hear = (kind: number, status: number, text: string, body: NewsBody, count: number) => void;

interface Receiver {
  readonly take: Hear;
}

/** The core's thread, which all gateways of this process share, and who hears of its calls. */
class Hub {
  readonly core: HttpCore;
  readonly receivers = new Map<number, Receiver>();

  #isWaking = false;

  constructor() {
    const times = {
      connectMs: GATEWAY_CONNECT_MS,
      keptIdleMs: GATEWAY_KEEPALIVE_MS,
      stallMs: GATEWAY_CLIENT_STALL_MS,
    };
    this.core = new HttpCore(times, (call, kind, status, text, body, count) =>
      this.receivers.get(call)?.take(kind, status, text, body, count),
    );
  }

  /** Wakes the core once for all that this turn of JavaScript's loop asks of it. */
  wake(): void {
    if (this.#isWaking) return;
    this.#isWaking = true;
    setImmediate(() => {
      this.#isWaking = false;
      this.core.wake();
    });
  }
}

let shared: Hub | null = null;

/** The core names an error as Node does. */
class CallError extends Error {
  readonly code: string;

  constructor(code: string, reason: string) {
    super(reason);
    this.code = code;
  }
}

/** The form of an answer, and its most bytes where it is wanted whole. */
type Want = readonly [form: Form, most: number];

/** One request from its start to its end. */
class Call implements Receiver {
  readonly #hub: Hub;
  readonly #id: number;
  /** Nothing else of the request is kept, because an answer may take an hour and a body be long. */
  readonly #signal: Abortable | null;
  readonly #onEnd: () => void;
  /** Hears of what comes next: at first of the beginning, then of pieces or of the end of passing. */
  #hear: Hear;
  #fail: (error: unknown) => void;
  #isOver = false;
  readonly #onAbort = (): void => this.abort(this.#signal?.reason);

  constructor(
    hub: Hub,
    id: number,
    signal: Abortable | null,
    hear: { hear: Hear; fail: (error: unknown) => void },
    onEnd: () => void,
  ) {
    this.#hub = hub;
    this.#id = id;
    this.#signal = signal;
    this.#hear = hear.hear;
    this.#fail = hear.fail;
    this.#onEnd = onEnd;
    hub.receivers.set(id, this);
    signal?.addEventListener("abort", this.#onAbort);
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  get hub(): Hub {
    return this.#hub;
  }

  get id(): number {
    return this.#id;
  }

  hearBy(hear: Hear, fail: (error: unknown) => void): void {
    this.#hear = hear;
    this.#fail = fail;
  }

  take(kind: number, status: number, text: string, body: NewsBody, count: number): void {
    const isOpen = kind === BEGUN || kind === PIECE;
    if (!isOpen) this.#end();
    if (kind <= IDS) this.#hear(kind, status, text, body, count);
    else this.#fail(new CallError(text, String(body)));
  }

  /** Ends the call early; idempotent. */
  abort(reason: unknown): void {
    if (this.#isOver) return;
    this.#end();
    this.#hub.core.abort(this.#id);
    this.#fail(reason);
  }

  #end(): void {
    this.#isOver = true;
    this.#hub.receivers.delete(this.#id);
    this.#signal?.removeEventListener("abort", this.#onAbort);
    this.#onEnd();
  }
}

export class CoreCalls implements Calls {
  readonly #hub: Hub;
  readonly #pool: number;
  readonly #host: string;
  #open = 0;
  #isClosed = false;
  #onQuiet: (() => void) | null = null;

  /** `name`: `host:port` or `unix:/path`; `most`: connections at once. */
  constructor(name: string, most: number) {
    shared ??= new Hub();
    this.#hub = shared;
    this.#pool = shared.core.open(name, most);
    this.#host = unixPath(name) === null ? name : "localhost";
  }

  get signs(): number {
    return this.#hub.core.signs(this.#pool);
  }

  request(request: EngineRequest): Promise<EngineAnswer> {
    return new Promise((resolve, reject) => {
      const hear: Hear = (kind, status, text, body, count) => {
        const headers = headersIn(text);
        const tokens = count < 0 ? null : count;
        resolve(new CoreAnswer(call, status, headers, String(body), kind === WHOLE, tokens));
      };
      const call = this.#start(request, [AS_PIECES, 0], { hear, fail: reject });
    });
  }

  text(request: EngineRequest, most: number): Promise<EngineText> {
    return new Promise((resolve, reject) => {
      const hear: Hear = (_kind, statusCode, _text, body) => {
        resolve({ statusCode, text: String(body) });
      };
      const fail = unlessLong(() => resolve({ statusCode: 0, text: null }), reject);
      this.#start(request, [AS_TEXT, most], { hear, fail });
    });
  }

  ids(request: EngineRequest, most: number): Promise<EngineIds> {
    return new Promise((resolve, reject) => {
      const hear: Hear = (_kind, statusCode, _text, body) => {
        const ids = body instanceof Uint32Array && body.length > 0 ? body : null;
        resolve({ statusCode, ids });
      };
      const fail = unlessLong(() => resolve({ statusCode: 0, ids: null }), reject);
      this.#start(request, [AS_IDS, most], { hear, fail });
    });
  }

  #start(
    request: EngineRequest,
    [form, most]: Want,
    hear: { hear: Hear; fail: (error: unknown) => void },
  ): Call {
    const { method, body: given = null, signal } = request;
    if (signal?.aborted === true) throw signal.reason;
    if (this.#isClosed) throw new CallError("ECANCELED", "the engine was removed");
    const body = typeof given === "string" ? Buffer.from(given) : given;
    const head = this.#headOf(request, body?.length ?? 0);
    const { core } = this.#hub;
    const id = core.request(this.#pool, head, body, method !== "HEAD", form, most);
    this.#hub.wake();
    this.#open += 1;
    return new Call(this.#hub, id, signal ?? null, hear, () => this.#ended());
  }

  #headOf({ method, path, headers = [] }: EngineRequest, length: number): string {
    let head = `${method} ${path} HTTP/1.1\r\nhost: ${this.#host}\r\nconnection: keep-alive\r\n`;
    let parts = path;
    for (let at = 0; at + 1 < headers.length; at += 2) {
      parts += `${headers[at]}${headers[at + 1]}`;
      head += `${headers[at]}: ${headers[at + 1]}\r\n`;
    }
    if (UNSAFE.test(parts)) throw new CallError("EINVAL", "a header or path holds a line's end");
    if (length > 0 || WITH_BODY.has(method)) head += `content-length: ${length}\r\n`;
    return `${head}\r\n`;
  }

  #ended(): void {
    this.#open -= 1;
    if (this.#open === 0) this.#onQuiet?.();
  }

  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    if (this.#open > 0) {
      await new Promise<void>((resolve) => {
        this.#onQuiet = resolve;
      });
    }
    this.#hub.core.close(this.#pool);
  }

  destroy(): Promise<void> {
    this.#isClosed = true;
    this.#hub.core.close(this.#pool);
    return Promise.resolve();
  }
}

class CoreAnswer implements EngineAnswer {
  readonly #call: Call;
  readonly statusCode: number;
  readonly headers: IncomingHttpHeaders;
  readonly first: string;
  readonly isWhole: boolean;
  readonly tokens: number | null;

  constructor(
    call: Call,
    statusCode: number,
    headers: IncomingHttpHeaders,
    first: string,
    isWhole: boolean,
    tokens: number | null,
  ) {
    this.#call = call;
    this.statusCode = statusCode;
    this.headers = headers;
    this.first = first;
    this.isWhole = isWhole;
    this.tokens = tokens;
  }

  body(): Readable {
    return new CoreBody(this.#call, this.first, this.isWhole);
  }

  readonly passTo = ({ descriptor, isChunked, meter }: Taker): Promise<Passed> =>
    new Promise((resolve) => {
      const call = this.#call;
      // An engine that is removed breaks the call off; all else that ends it early is its client's leaving.
      const fail = (error: unknown): void => {
        const outcome = error instanceof CallError ? "broken" : "gone";
        resolve({ outcome, isAtBorder: false });
      };
      call.hearBy((_kind, outcome, _text, _body, border) => {
        resolve({ outcome: OUTCOMES[outcome] ?? "broken", isAtBorder: border === 1 });
      }, fail);
      if (call.isOver) return fail(null);
      try {
        call.hub.core.pass(call.id, descriptor, isChunked, meter);
        call.hub.wake();
      } catch (error) {
        // The client's socket has gone meanwhile.
        call.abort(toTierkvError(error));
      }
    });

  drop(): void {
    this.#call.hearBy(
      () => {},
      () => {},
    );
    this.#call.abort(null);
  }
}

/** A body that asks the core for each next piece, so that an engine sends at its reader's pace. */
class CoreBody extends Readable {
  readonly #call: Call;
  #isAsked = false;
  #failure: unknown = null;

  constructor(call: Call, first: string, isWhole: boolean) {
    super();
    this.#call = call;
    call.hearBy(
      (kind, _status, _text, piece) => {
        this.#isAsked = false;
        if (piece.length > 0) this.push(piece);
        if (kind === LAST) this.push(null);
        // A piece of no bytes would otherwise end the asking.
        else if (piece.length === 0) this.#ask();
      },
      (error) => this.#break(error),
    );
    if (first !== "") this.push(Buffer.from(first, "latin1"));
    if (isWhole) this.push(null);
    else if (call.isOver) this.#break(new CallError("ECANCELED", "the request was ended"));
  }

  #break(error: unknown): void {
    this.#failure = error;
    this.destroy(errorOf(error));
  }

  override _read(): void {
    this.#ask();
  }

  #ask(): void {
    if (this.#isAsked || this.#call.isOver) return;
    this.#isAsked = true;
    this.#call.hub.core.more(this.#call.id);
    this.#call.hub.wake();
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    if (this.#failure === null) {
      this.#call.hearBy(
        () => {},
        () => {},
      );
      this.#call.abort(null);
    }
    done(error);
  }
}

/** Tells an answer that is too long from a failure. */
const unlessLong =
  (onLong: () => void, reject: (error: Error) => void) =>
  (error: unknown): void => {
    if (error instanceof CallError && error.code === "EMSGSIZE") onLong();
    else reject(errorOf(error));
  };

const errorOf = (error: unknown): Error =>
  error instanceof Error ? error : new Error(String(error));

/** Reads `name\nvalue\nname\nvalue`, names in lower case. */
function headersIn(text: string): IncomingHttpHeaders {
  const headers: Record<string, string | string[]> = {};
  if (text === "") return headers;
  const parts = text.split("\n");
  for (let at = 0; at + 1 < parts.length; at += 2) {
    const [name = "", value = ""] = [parts[at], parts[at + 1]];
    const { [name]: before } = headers;
    if (name === "set-cookie") headers[name] = Array.isArray(before) ? [...before, value] : [value];
    else headers[name] = before === undefined ? value : `${String(before)}, ${value}`;
  }
  return headers;
}
