// Owns the HTTP endpoint for Prometheus and health checks: two paths, bounded in connections, time and request size.
import { createServer } from "node:http";
import type { IncomingMessage, RequestListener } from "node:http";
import type { Running } from "../base/lifecycle.ts";
import {
  SCRAPE_ADDRESS_CONNECTIONS_MAX,
  SCRAPE_CONNECTIONS_MAX,
  SCRAPE_HEADER_BYTES_MAX,
  SCRAPE_TIMEOUT_MS,
} from "../base/limits/general.ts";
import { listenAt } from "../base/listen.ts";
import { letNewcomersIn } from "./newcomers.ts";
import { CONTENT_TYPE } from "./text.ts";

export interface ScrapeOptions {
  /** Port 0: the system chooses one. */
  readonly listen: { readonly host: string; readonly port: number };
  /** The key that sets it, for errors. */
  readonly key: string;
  /** Returns the text that Prometheus scrapes. */
  read(): Promise<string>;
  /** Returns why the process cannot work now; null: it can. */
  trouble(): string | null;
}

export interface ScrapeServer extends Running {
  /** `http://host:port/metrics`, with the real port. */
  readonly url: string;
}

/** Serves `GET /metrics` and `GET /healthz` until closed. Throws ADDRESS_IN_USE or LISTEN_FAILED. */
export async function startScrapeServer({
  listen,
  key,
  read,
  trouble,
}: ScrapeOptions): Promise<ScrapeServer> {
  const limits = {
    maxHeaderSize: SCRAPE_HEADER_BYTES_MAX,
    requestTimeout: SCRAPE_TIMEOUT_MS,
    headersTimeout: SCRAPE_TIMEOUT_MS,
    connectionsCheckingInterval: SCRAPE_TIMEOUT_MS,
  };
  const server = createServer(limits, answer(read, trouble));
  // Others' connections must not keep the probes of whoever restarts this process out.
  letNewcomersIn(server, SCRAPE_CONNECTIONS_MAX, SCRAPE_ADDRESS_CONNECTIONS_MAX);
  // Also ends a client that has stopped reading.
  server.setTimeout(SCRAPE_TIMEOUT_MS);
  return {
    url: `http://${await listenAt(server, listen, key)}/metrics`,
    close(): Promise<void> {
      server.close();
      server.closeAllConnections();
      return Promise.resolve();
    },
  };
}

function answer(read: ScrapeOptions["read"], trouble: ScrapeOptions["trouble"]): RequestListener {
  return (request, response) => {
    const path = request.url?.replace(/\?.*$/, "");
    if (request.method !== "GET" || !isServed(path) || hasBody(request)) {
      // A body is never read, so the connection ends with the answer.
      response
        .writeHead(404, { "content-type": "text/plain", connection: "close" })
        .end("GET /metrics or GET /healthz\n", () => request.socket.destroySoon());
      return;
    }
    request.resume();
    if (path === "/healthz") {
      const reason = trouble();
      const status = reason === null ? 200 : 503;
      response.writeHead(status, { "content-type": "text/plain" }).end(`${reason ?? "ok"}\n`);
      return;
    }
    read().then(
      (text) => response.writeHead(200, { "content-type": CONTENT_TYPE }).end(text),
      (error: Error) =>
        response.writeHead(500, { "content-type": "text/plain" }).end(error.message),
    );
  };
}

const isServed = (path: string | undefined): boolean => path === "/metrics" || path === "/healthz";

function hasBody({ headers }: IncomingMessage): boolean {
  const { "content-length": length = "0", "transfer-encoding": coding } = headers;
  return length !== "0" || coding !== undefined;
}
