// Owns one request that Envoy asks about: takes its head and body, returns an engine or a refusal, and watches the answer.
import type { ServerDuplexStream } from "@grpc/grpc-js";
import { GATEWAY_BODY_BYTES_MAX, GATEWAY_PIECE_BYTES } from "../../base/limits/gateway.ts";
import { AnswerMeter } from "../../base/native.ts";
import { nowMs } from "../../base/time.ts";
import { headersSet } from "../../wire/ext-proc.ts";
import type {
  HeaderValue,
  HttpBody,
  HttpHeaders,
  ProcessingRequest,
  ProcessingResponse,
  Struct,
} from "../../wire/ext-proc.ts";
import type { Engine, Waiting } from "../engines/engine.ts";
import { Visit } from "../front/allowance.ts";
import type { Refusal } from "../front/allowance.ts";
import type { BodyBudget } from "../front/body.ts";
import type { Forwarding } from "../front/forward.ts";
import { ofConnection, passes } from "../front/headers.ts";
import type { Passage } from "../front/headers.ts";
import type { Keys } from "../front/keys.ts";
import { enter, holderOf, isPassed, readingOf } from "../front/reading.ts";
import type { Holder } from "../front/reading.ts";
import { bodyOf, headersOf, statusOf } from "../front/refusal.ts";
import type { Refused } from "../front/refusal.ts";
import type { Sent } from "../score/router.ts";

export type Call = ServerDuplexStream<ProcessingRequest, ProcessingResponse>;

export interface Picking extends Forwarding {
  keys: Keys | null;
  budget: BodyBudget;
  /** Whether answers name the engine that made them. */
  hasEngine: boolean;
}

/** Name in the Inference Extension, for the request's headers and the metadata of Envoy's balancers. */
const DESTINATION = "x-gateway-destination-endpoint";
const METADATA = "envoy.lb";

/** Begins with Envoy's first message and ends with its stream. */
export class Exchange {
  readonly #call: Call;
  readonly #to: Picking;
  readonly #onEnd: () => void;
  readonly #left = new AbortController();
  readonly #arrivedMs: number = nowMs();
  #headers: Readonly<Record<string, string>> = {};
  #path = "/";
  #holder: Holder | null = null;
  /** Whether Envoy sends a body, even an empty one: it then waits for the end of ours. */
  #hasBody = false;
  readonly #chunks: Buffer[] = [];
  #bytes = 0;
  #isDecided = false;
  #engine: Engine | null = null;
  #sent: Sent | null = null;
  #waiting: Waiting | null = null;
  #visit: Visit | null = null;
  #code = 0;
  #isBegun = false;
  #isEvents = false;
  readonly #meter = new AnswerMeter();

  constructor(call: Call, to: Picking, onEnd: () => void) {
    this.#call = call;
    this.#to = to;
    this.#onEnd = onEnd;
    call.on("data", (message: ProcessingRequest) => this.#take(message));
    call.on("end", () => {
      this.#end();
      call.end();
    });
    call.on("cancelled", () => this.#end()).on("error", () => this.#end());
  }

  #take(message: ProcessingRequest): void {
    if (message.requestHeaders) this.#takeHead(message.requestHeaders);
    else if (message.requestBody) this.#takeBody(message.requestBody);
    else if (message.requestTrailers) this.#decide(true);
    else if (message.responseHeaders) this.#takeAnswer(message.responseHeaders);
    else if (message.responseBody) this.#passAnswer(message.responseBody);
    else if (message.responseTrailers) this.#write({ responseTrailers: {} });
  }

  /** Refuses what needs no body before any of it is kept, because clients without a key would fill the budget. */
  #takeHead(head: HttpHeaders): void {
    this.#headers = headersIn(head);
    this.#path = (this.#headers[":path"] ?? "/").replace(/\?.*$/, "");
    this.#holder = holderOf(this.#to.keys, this.#headers);
    if (this.#holder === null) return this.#refuse("no_key");
    if (!isPassed(this.#path, this.#holder)) return this.#refuse("no_path");
    const visit = enter(this.#holder);
    if (visit !== null && !(visit instanceof Visit)) return this.#refuseLimited(visit);
    this.#visit = visit;
    if (head.endOfStream === true) this.#decide(false);
  }

  #takeBody({ body, endOfStream }: HttpBody): void {
    if (this.#isDecided) return;
    this.#hasBody = true;
    if (body !== undefined && body.length > 0) {
      if (this.#bytes + body.length > GATEWAY_BODY_BYTES_MAX) return this.#refuse("large");
      if (!this.#to.budget.take(body.length)) return this.#refuse("full");
      this.#bytes += body.length;
      this.#chunks.push(body);
    }
    if (endOfStream === true) this.#decide(false);
  }

  /** Decides once the whole request is here; `hasTrailers`: its body ends with them. */
  #decide(hasTrailers: boolean): void {
    const holder = this.#holder;
    if (this.#isDecided || this.#left.signal.aborted || holder === null) return;
    this.#isDecided = true;
    // The body is nested too deeply to serialize, or has too many parts.
    void this.#choose(holder, hasTrailers).catch(() => this.#refuse("no_json"));
  }

  async #choose(holder: Holder, hasTrailers: boolean): Promise<void> {
    const { router, fleet } = this.#to;
    const { signal } = this.#left;
    const reading = readingOf(Buffer.concat(this.#chunks), this.#path, this.#headers, holder);
    if (reading === null) return this.#refuse("no_json");
    const { asked, bytes, passage } = reading;
    const spent = this.#visit?.spend(asked.body, asked.bytes) ?? null;
    if (spent !== null) return this.#refuseLimited(spent);
    const choice = await router.choose(asked);
    if (choice.isLate) return this.#refuse("late");
    const engine = await fleet.enter(asked.model, choice.order, signal, { turn: choice.turn });
    if (engine === "gone") return;
    if (typeof engine === "string") return this.#refuse(engine);
    // The client left just now.
    if (signal.aborted) return fleet.leave(engine);
    this.#engine = engine;
    this.#sent = choice.send(engine);
    choice.release();
    this.#waiting = engine.untilBegun(signal, this.#sent.predictedMs);
    this.#giveBack();
    this.#sendHead(engine, passage);
    if (this.#hasBody) this.#sendBody(bytes, hasTrailers);
    if (hasTrailers) this.#write({ requestTrailers: {} });
  }

  #sendHead({ name, access }: Engine, passage: Passage): void {
    // Envoy removes headers before it sets any.
    const own = passage.own.length > 0 ? access.headers : {};
    const metered = passage.isMetered ? { "accept-encoding": "identity" } : {};
    this.#write({
      requestHeaders: {
        response: {
          headerMutation: {
            ...headersSet({ [DESTINATION]: name, ...own, ...metered, ...this.#sent?.headers }),
            removeHeaders: [...this.#kept(passage), "content-length"],
          },
        },
      },
      dynamicMetadata: metadataOf(name),
    });
  }

  /** Returns the headers that the engine must not get; Envoy itself handles those of one connection and its own. */
  #kept(passage: Passage): string[] {
    const isOfEnvoy = /^(?::|x-forwarded-|x-envoy-|x-gateway-|host$)/;
    return Object.keys(this.#headers).filter(
      (name) => !isOfEnvoy.test(name) && !ofConnection(name) && !passes(name, passage),
    );
  }

  #sendBody(bytes: Buffer, hasTrailers: boolean): void {
    for (let at = 0; at === 0 || at < bytes.length; at += GATEWAY_PIECE_BYTES) {
      const isLast = at + GATEWAY_PIECE_BYTES >= bytes.length;
      const body = bytes.subarray(at, at + GATEWAY_PIECE_BYTES);
      const streamedResponse = { body, endOfStream: isLast && !hasTrailers };
      this.#write({ requestBody: { response: { bodyMutation: { streamedResponse } } } });
    }
  }

  #takeAnswer(head: HttpHeaders): void {
    const headers = headersIn(head);
    this.#code = Number(headers[":status"] ?? 0);
    this.#isEvents = (headers["content-type"] ?? "").startsWith("text/event-stream");
    if (this.#engine !== null && this.#code >= 502 && this.#code <= 504) {
      this.#to.fleet.suspect(this.#engine, null);
    }
    const told = {
      ...(this.#to.hasEngine ? { [`${DESTINATION}-served`]: this.#engine?.name ?? "" } : {}),
      ...this.#sent?.receipt,
      ...this.#visit?.headers(),
    };
    this.#write({ responseHeaders: { response: { headerMutation: headersSet(told) } } });
    if (head.endOfStream === true) this.#begin();
  }

  /** Passes a chunk on unchanged, because the gateway only watches for the first token and the end. */
  #passAnswer({ body = Buffer.alloc(0), endOfStream = false }: HttpBody): void {
    if (body.length > 0) this.#begin();
    this.#engine?.noteSign();
    this.#visit?.meter.pass(body);
    if (!this.#isEvents) this.#meter.pass(body);
    if (endOfStream && !this.#isEvents) this.#answered();
    const streamedResponse = { body, endOfStream };
    this.#write({ responseBody: { response: { bodyMutation: { streamedResponse } } } });
  }

  #answered(): void {
    const { answer } = this.#meter;
    if (this.#code === 200 && answer !== null) this.#sent?.answered(answer);
  }

  #begin(): void {
    if (this.#isBegun || this.#engine === null) return;
    this.#isBegun = true;
    this.#waiting?.begun();
    // Not for errors, because they come before any computing.
    if (this.#code === 200) this.#sent?.begun(this.#isEvents);
    this.#to.figures.began(this.#engine.name, this.#code, (nowMs() - this.#arrivedMs) / 1000);
  }

  #refuseLimited({ spent, retryAfterS, headers }: Refusal): void {
    this.#refuse(spent, { ...headersOf(spent, retryAfterS), ...headers });
  }

  #refuse(reason: Refused, headers: Record<string, string> = headersOf(reason)): void {
    this.#isDecided = true;
    this.#code = statusOf(reason);
    this.#giveBack();
    this.#to.figures.refused(reason);
    this.#write({
      immediateResponse: {
        status: { code: this.#code },
        headers: headersSet(headers),
        body: Buffer.from(bodyOf(reason, this.#path)),
        details: reason,
      },
    });
  }

  /** Envoy reads no faster than the client, so a full stream pauses reading the engine's answer. */
  #write(message: ProcessingResponse): void {
    if (this.#left.signal.aborted || this.#call.write(message) || this.#call.isPaused()) return;
    this.#call.pause();
    this.#call.once("drain", () => this.#call.resume());
  }

  #giveBack(): void {
    this.#to.budget.give(this.#bytes);
    this.#bytes = 0;
    this.#chunks.length = 0;
  }

  #end(): void {
    if (this.#left.signal.aborted) return;
    this.#left.abort();
    this.#onEnd();
    this.#giveBack();
    this.#visit?.leave(this.#code === 0 ? null : this.#code);
    this.#sent?.ended();
    this.#waiting?.begun();
    if (this.#engine !== null) this.#to.fleet.leave(this.#engine);
  }
}

/** Header names arrive in lower case. */
function headersIn({ headers }: HttpHeaders): Record<string, string> {
  const valueOf = ({ value, rawValue }: HeaderValue): string =>
    rawValue !== undefined && rawValue.length > 0 ? rawValue.toString("latin1") : (value ?? "");
  return Object.fromEntries((headers?.headers ?? []).map((one) => [one.key, valueOf(one)]));
}

function metadataOf(engine: string): Struct {
  const inner: Struct = { fields: { [DESTINATION]: { stringValue: engine } } };
  return { fields: { [METADATA]: { structValue: inner } } };
}
