// Owns keeping a client's stream alive while no engine has begun to answer: its head, and comments at an interval.
import type { ServerResponse } from "node:http";
import { GATEWAY_COMMENT_MS } from "../../base/limits/gateway.ts";

/** Clients skip comments; proxies and browsers give up a connection that stays silent. */
const COMMENT = ": keep-alive\n\n";

/**
 * Sends a comment every GATEWAY_COMMENT_MS until stopped; the first brings the head of a stream. The request may
 * still be sent to another engine then, and a refusal becomes an event.
 */
export class KeepAlive {
  readonly #timer: NodeJS.Timeout;

  constructor(response: ServerResponse) {
    this.#timer = setInterval(() => {
      if (response.destroyed) return this.stop();
      if (!response.headersSent) {
        response.writeHead(200, {
          "content-type": "text/event-stream; charset=utf-8",
          "cache-control": "no-cache",
        });
      }
      if (!response.writableNeedDrain) response.write(COMMENT);
    }, GATEWAY_COMMENT_MS);
  }

  /** Idempotent. */
  stop(): void {
    clearInterval(this.#timer);
  }
}
