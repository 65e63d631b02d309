// Owns the page's HTTP server: access checks, its few paths, and the headers that restrict the browser.
import { createHash, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";
import type { IncomingMessage, RequestListener, Server, ServerResponse } from "node:http";
import { createServer as createTlsServer } from "node:https";
import { toTierkvError } from "../base/errors.ts";
import { isLocal, splitAddress } from "../base/hosts.ts";
import type { Running } from "../base/lifecycle.ts";
import {
  PAGE_CONNECTIONS_MAX,
  PAGE_HEADER_BYTES_MAX,
  PAGE_TIMEOUT_MS,
} from "../base/limits/seen.ts";
import { listenAt } from "../base/listen.ts";
import { Feed } from "./feed.ts";
import type { PageSource } from "./feed.ts";
import { readPageFiles } from "./files.ts";

export interface PageOptions {
  /** Port 0: the system chooses one. */
  readonly listen: { readonly host: string; readonly port: number; readonly text: string };
  /** The configuration key that sets it, for errors. */
  readonly key: string;
  /** As PEM; null: plain HTTP. */
  readonly tls: { readonly cert: string; readonly key: string } | null;
  /** Token that a browser must show; null: none is needed. */
  readonly token: string | null;
  readonly source: PageSource;
}

export interface PageServer extends Running {
  /** With the real port. */
  readonly url: string;
}

/** Allows only our own files and address: no inline script or style, no frame around it. */
const POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self'",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join("; ");
const HEADERS = {
  "content-security-policy": POLICY,
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
  "cross-origin-opener-policy": "same-origin",
  "cross-origin-resource-policy": "same-origin",
  "cache-control": "no-store",
} as const;

/** Serves until closed. Throws ADDRESS_IN_USE or LISTEN_FAILED. */
export async function startPage(options: PageOptions): Promise<PageServer> {
  const { listen, tls, key, source } = options;
  const files = readPageFiles();
  const feed = new Feed(source);
  const answer: RequestListener = (request, response) => {
    const refused = refusalOf(request, options);
    if (refused !== null) return refuse(response, refused);
    const path = request.url?.replace(/\?.*$/, "") ?? "";
    const file = files.get(path);
    if (file !== undefined) {
      return void response.writeHead(200, { ...HEADERS, "content-type": file.type }).end(file.body);
    }
    if (path === "/events") return sendEvents(response, feed);
    if (path === "/requests") return void sendRequests(response, source);
    return refuse(response, { status: 404, text: "there is no such page" });
  };
  const server = newServer(tls, answer);
  const at = await listenAt(server, listen, key).catch((error: unknown) => {
    feed.close();
    throw error;
  });
  return {
    url: `${tls === null ? "http" : "https"}://${at}/`,
    close(): Promise<void> {
      feed.close();
      server.close();
      server.closeAllConnections();
      return Promise.resolve();
    },
  };
}

function newServer(tls: PageOptions["tls"], answer: RequestListener): Server {
  const limits = {
    maxHeaderSize: PAGE_HEADER_BYTES_MAX,
    requestTimeout: PAGE_TIMEOUT_MS,
    headersTimeout: PAGE_TIMEOUT_MS,
    connectionsCheckingInterval: PAGE_TIMEOUT_MS,
  };
  const server =
    tls === null
      ? createServer(limits, answer)
      : createTlsServer({ ...limits, ...tls, minVersion: "TLSv1.3" }, answer);
  server.maxConnections = PAGE_CONNECTIONS_MAX;
  server.setTimeout(PAGE_TIMEOUT_MS);
  return server;
}

interface Refusal {
  status: number;
  text: string;
}

/** Returns why a request is refused; null: it may be answered. */
function refusalOf(request: IncomingMessage, { listen, token }: PageOptions): Refusal | null {
  const { method, headers } = request;
  const hasBody = (headers["content-length"] ?? "0") !== "0" || "transfer-encoding" in headers;
  if (method !== "GET" || hasBody) return { status: 405, text: "only GET" };
  // DNS rebinding: a foreign page may send a browser here under its own host name.
  if (isLocal(listen) && !isLocalName(headers.host ?? "")) {
    return { status: 421, text: "ask for localhost, or for an address of the loopback" };
  }
  if (token === null || isShown(headers.authorization ?? "", token)) return null;
  return { status: 401, text: "show the token: any user name, the token as password" };
}

function isLocalName(host: string): boolean {
  const name = /:\d+$/.test(host) ? splitAddress(host).host : host.replace(/^\[(.*)\]$/, "$1");
  return isLocal({ host: name, text: host });
}

/** Checks the token, sent as bearer or as the browser's password, in constant time. */
function isShown(authorization: string, token: string): boolean {
  const [, bearer] = /^bearer +(\S+)$/i.exec(authorization) ?? [];
  const [, basic] = /^basic +(\S+)$/i.exec(authorization) ?? [];
  const [, password = ""] =
    /^[^:]*:(.*)$/.exec(Buffer.from(basic ?? "", "base64").toString()) ?? [];
  const digest = (text: string): Buffer => createHash("sha256").update(text).digest();
  return timingSafeEqual(digest(bearer ?? password), digest(token));
}

function refuse(response: ServerResponse, { status, text }: Refusal): void {
  const challenge = status === 401 ? { "www-authenticate": 'Basic realm="tierKV"' } : {};
  response
    .writeHead(status, {
      ...HEADERS,
      ...challenge,
      "content-type": "text/plain",
      connection: "close",
    })
    .end(`${text}\n`, () => response.socket?.destroySoon());
}

function sendEvents(response: ServerResponse, feed: Feed): void {
  response.writeHead(200, { ...HEADERS, "content-type": "text/event-stream" });
  // No time-out, because the page sends nothing while it reads events.
  response.socket?.setTimeout(0);
  if (!feed.join(response))
    response.end('event: trouble\ndata: {"text":"too many pages are open"}\n\n');
}

async function sendRequests(response: ServerResponse, source: PageSource): Promise<void> {
  try {
    const body = JSON.stringify(await source.requests());
    response.writeHead(200, { ...HEADERS, "content-type": "application/json" }).end(body);
  } catch (error) {
    refuse(response, { status: 503, text: toTierkvError(error).message });
  }
}
