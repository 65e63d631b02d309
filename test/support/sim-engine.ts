// Owns a simulated engine: the part of vLLM's HTTP API that the gateway uses, with failures on demand.
import { once } from "node:events";
import { createServer } from "node:http";
import type { IncomingMessage, Server, ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { Writable } from "node:stream";
import { createGzip, gzipSync } from "node:zlib";
import type { Gzip } from "node:zlib";

/** A text that is in no body. */
const NOTHING = "\0";
/** Events of the longest stream; a client ends it earlier. */
const TOKENS_MAX = 1_000_000;

/** Behaviour for the next completions; `silent`: the head of an answer, and then nothing. */
export type Fault =
  | "none"
  | "unserved"
  | "busy"
  | "redirect"
  | "reset"
  | "break-after-head"
  | "break-mid-stream"
  | "break-mid-event"
  | "silent";

export interface Asked {
  method: string;
  path: string;
  headers: IncomingMessage["headers"];
  body: string;
}

/** Answers a completion with `tokens` events that name this engine and count up. */
export class SimEngine {
  /** Models; an adapter is `NAME@MODEL`. */
  readonly models: string[];
  readonly asked: Asked[] = [];
  /** Connections that a client closed during an answer. */
  aborted = 0;
  fault: Fault = "none";
  /** Status of streams. */
  status = 200;
  /** Events of a stream, and the size each one is padded to. */
  tokens = 5;
  eventBytes = 0;
  /** Events of every stream in place of the counted ones, each with its empty line. */
  script: readonly string[] | null = null;
  /** Bytes of streams, as far as connections took them. */
  sentBytes = 0;
  /** Completions are held until it resolves. */
  gate: Promise<void> = Promise.resolve();
  /** Pauses a stream behind its first events. */
  hold: { after: number; until: Promise<void> } | null = null;
  isHealthy = true;
  /** Answers of `GET` by path, such as `/is_paused`; other paths are not served. */
  states: Readonly<Record<string, object>> = {};
  /** Path of `states` that is not answered, as by a core in a long step; null: each is. */
  silentAt: string | null = null;
  /** Questions there. */
  unanswered = 0;
  /** Whether answers are compressed, whatever the request asks for; each event can be read at once. */
  isGzipped = false;
  /** Text of `/metrics`; null: the path is not served. */
  metrics: (() => string) | null = null;
  /** Requests for `/metrics`. */
  scrapes = 0;
  /** Ends the engine when a body contains it; null: nothing does. */
  poison: string | null = null;
  /** Key that all requests but `/health` must bring; null: none. */
  key: string | null = null;
  /** Whether events have the form of the API, with texts `t0 `, `t1 ` and their ids. */
  hasChoices = false;
  /** Requests for the tokens of a prompt. */
  tokenized = 0;
  /** Makes a token for each character. */
  tokenize: (body: string) => number[] | Promise<number[]> = (body) => {
    const { prompt, messages } = JSON.parse(body) as { prompt?: string; messages?: unknown };
    return tokensOf(prompt ?? JSON.stringify(messages));
  };
  /** Makes the tokens of a request of any form, for its `/render` routes and its cache; null: it has no such routes. */
  rendered: ((path: string, fields: Readonly<Record<string, unknown>>) => number[]) | null = null;
  /** Status of those routes where it has none, and how often it gave that. */
  routeless = 404;
  refusedRenders = 0;
  /** Requests that were rendered. */
  renders = 0;
  /** Reported folder of its models. */
  root: string | undefined;
  /** Receives the tokens that each completion leaves in the cache. */
  onPrompt: (tokens: number[]) => Promise<void> = () => Promise.resolve();
  /** Additional fields of whole answers, and headers of them. */
  more: object = {};
  heads: Readonly<Record<string, string>> = {};
  #server: Server;
  #port = 0;

  constructor(models: readonly string[] = ["m"]) {
    this.models = [...models];
    this.#server = this.#make();
  }

  get name(): string {
    return `127.0.0.1:${this.#port}`;
  }

  /** Starts on its earlier port, if any; or on a Unix socket. */
  async start(socket: string | null = null): Promise<this> {
    this.#server = this.#make();
    if (socket === null) this.#server.listen(this.#port, "127.0.0.1");
    else this.#server.listen(socket);
    await once(this.#server, "listening");
    const at = this.#server.address() as AddressInfo | string;
    if (typeof at !== "string") this.#port = at.port;
    return this;
  }

  async kill(): Promise<void> {
    const closed = once(this.#server, "close");
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
  }

  #make(): Server {
    return createServer((request, response) => {
      let body = "";
      request.setEncoding("utf8").on("data", (chunk: string) => (body += chunk));
      request.on("end", () => void this.#answer(request, response, body));
    });
  }

  async #answer(request: IncomingMessage, response: ServerResponse, body: string): Promise<void> {
    const path = request.url!;
    if (path === "/health") return this.#say(response, this.isHealthy ? 200 : 503);
    const { authorization } = request.headers;
    if (this.key !== null && authorization !== `Bearer ${this.key}`) {
      return this.#say(response, 401, '{"error":"Unauthorized"}');
    }
    if (/^\/(?:is_|kv_event_sources)/.test(path)) return this.#reportAt(response, path);
    if (path === "/metrics") return this.#scrape(response);
    if (path === "/v1/models") return this.#list(response);
    if (path === "/tokenize") {
      this.tokenized += 1;
      return void response.end(JSON.stringify({ tokens: await this.tokenize(body) }));
    }
    if (path.endsWith("/render")) return this.#render(response, path, body);
    this.asked.push({ method: request.method!, path, headers: request.headers, body });
    const isDeadly = body.includes(this.poison ?? NOTHING);
    await (isDeadly ? this.kill() : this.#complete(request, response, body));
  }

  #say(response: ServerResponse, code: number, text?: string): void {
    response.writeHead(code).end(text);
  }

  #list(response: ServerResponse): void {
    const data = this.models.map((name) => {
      const [id, parent] = name.split("@");
      return { id, parent, root: this.root, object: "model", owned_by: "sim" };
    });
    response.end(JSON.stringify({ object: "list", data }));
  }

  #scrape(response: ServerResponse): void {
    this.scrapes += 1;
    response.writeHead(this.metrics === null ? 404 : 200).end(this.metrics?.());
  }

  #reportAt(response: ServerResponse, path: string): void {
    if (path === this.silentAt) this.unanswered += 1;
    else this.#report(response, this.states[path]);
  }

  #report(response: ServerResponse, state: object | undefined): void {
    response.writeHead(state === undefined ? 404 : 200).end(JSON.stringify(state));
  }

  /** Answers with a fault that comes before any answer; returns false where there is none. */
  #fails(request: IncomingMessage, response: ServerResponse, fault: Fault): boolean {
    if (fault === "reset") request.socket.destroy();
    else if (fault === "unserved") response.writeHead(503).end("no");
    else if (fault === "busy") response.writeHead(503, { "retry-after": "7" }).end("busy");
    else if (fault === "redirect") {
      const location = `http://${this.name}${request.url}there?x=1`;
      response.writeHead(307, { location }).end();
    } else return false;
    return true;
  }

  #render(response: ServerResponse, path: string, body: string): void {
    if (this.rendered === null) {
      this.refusedRenders += 1;
      return void response.writeHead(this.routeless).end();
    }
    this.renders += 1;
    const fields = JSON.parse(body) as Readonly<Record<string, unknown>>;
    const token_ids = this.rendered(path.slice(0, -"/render".length), fields);
    response.end(JSON.stringify({ token_ids, features: null }));
  }

  /** Leaves a request's prompt in the cache. */
  async #cache(path: string, body: string): Promise<void> {
    const fields = parsed(body) as Wanted & Readonly<Record<string, unknown>>;
    if (this.rendered !== null) await this.onPrompt(this.rendered(path, fields));
    else if (fields.prompt !== undefined) await this.onPrompt(tokensOf(fields.prompt));
  }

  async #complete(request: IncomingMessage, response: ServerResponse, body: string): Promise<void> {
    response.on("close", () => {
      if (!response.writableFinished) this.aborted += 1;
    });
    const fault = this.fault;
    await this.gate;
    const { max_tokens: most = Infinity } = parsed(body);
    await this.#cache(request.url ?? "", body);
    if (this.#fails(request, response, fault)) return;
    const isStream = body.includes('"stream":true');
    if (this.isGzipped) response.setHeader("content-encoding", "gzip");
    if (!isStream) {
      response.setHeader("content-type", "application/json");
      for (const [name, value] of Object.entries(this.heads)) response.setHeader(name, value);
      const text = JSON.stringify({ engine: this.name, echo: body, ...this.more });
      return void response.end(this.isGzipped ? gzipSync(text) : text);
    }
    response.writeHead(this.status, { "content-type": "text/event-stream; charset=utf-8" });
    response.flushHeaders();
    if (fault === "silent") return;
    if (fault === "break-after-head") return void setImmediate(() => request.socket.destroy());
    await this.#stream(response, fault, Math.min(this.tokens, most));
  }

  #counted(token: number): string {
    const plain = `{"engine":"${this.name}","token":${token}}`;
    const choice = `{"choices":[{"text":"t${token} ","token_ids":[${token}]}]}`;
    return `data: ${(this.hasChoices ? choice : plain).padEnd(this.eventBytes)}\n\n`;
  }

  async #stream(response: ServerResponse, fault: Fault, tokens: number): Promise<void> {
    const events = this.script ?? Array.from({ length: Math.min(tokens, TOKENS_MAX) }, () => null);
    const out = this.isGzipped ? new Zipped(response) : new Clear(response);
    for (const [token, given] of events.entries()) {
      if (token === this.hold?.after) await this.hold.until;
      const event = given ?? this.#counted(token);
      const isBreaking = fault.startsWith("break") && token === 2;
      const text = isBreaking && fault === "break-mid-event" ? event.slice(0, 12) : event;
      await out.write(text);
      this.sentBytes += text.length;
      if (isBreaking) return void response.destroy();
      await new Promise(setImmediate);
    }
    out.end(this.script === null ? "data: [DONE]\n\n" : "");
  }
}

/** Writes the events of a stream. */
class Clear {
  readonly #to: Writable;

  constructor(to: Writable) {
    this.#to = to;
  }

  write(text: string): Promise<unknown> {
    return new Promise((resolve) => {
      this.#to.write(text, resolve);
    });
  }

  end(text: string): void {
    this.#to.end(text);
  }
}

/** Compresses them, each so that it can be read at once. */
class Zipped extends Clear {
  readonly #zip: Gzip;

  constructor(to: Writable) {
    const zip = createGzip();
    super(zip);
    this.#zip = zip;
    zip.pipe(to);
  }

  override async write(text: string): Promise<void> {
    await super.write(text);
    await new Promise<void>((resolve) => {
      this.#zip.flush(resolve);
    });
  }
}

/** Returns a token for each character. */
export function tokensOf(prompt: string | readonly number[]): number[] {
  if (typeof prompt !== "string") return [...prompt];
  return Array.from(prompt, (character) => character.codePointAt(0)!);
}

interface Wanted {
  prompt?: string | number[];
  max_tokens?: number;
}

function parsed(body: string): Wanted {
  try {
    return JSON.parse(body) as Wanted;
  } catch {
    return {};
  }
}
