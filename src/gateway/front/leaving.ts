// Owns how a gateway leaves: it says so, takes requests for a while, finishes open answers, and logs the answers that it cuts.
import type { IncomingMessage, ServerResponse } from "node:http";
import { GATEWAY_CUT_SHOWN } from "../../base/limits/gateway.ts";
import type { Logger } from "../../base/log.ts";
import { nowMs, sleep } from "../../base/time.ts";
import { pathOf } from "./refusal.ts";

export interface LeavingOptions {
  leaveMs: number;
  drainMs: number;
  logger: Logger;
}

/** An answer that was open at the end. */
interface Cut {
  path: string;
  /** The client's `x-request-id`, else the one that the gateway gave; empty: none yet. */
  id: string;
  ms: number;
}

export class Leaving {
  readonly #options: LeavingOptions;
  readonly #open = new Map<ServerResponse, { request: IncomingMessage; sinceMs: number }>();
  #isLeaving = false;

  constructor(options: LeavingOptions) {
    this.#options = options;
  }

  get isLeaving(): boolean {
    return this.#isLeaving;
  }

  get drainMs(): number {
    return this.#options.drainMs;
  }

  /** Resolves when no balancer should send requests any more. */
  async begin(): Promise<void> {
    const { leaveMs, logger } = this.#options;
    this.#isLeaving = true;
    if (leaveMs === 0) return;
    logger.info(
      { leaveMs },
      "leaving: requests are accepted for leave_ms more, while /health answers 503",
    );
    await sleep(leaveMs);
  }

  /** Remembers an answer until it has ended. */
  opened(request: IncomingMessage, response: ServerResponse): void {
    this.#open.set(response, { request, sinceMs: nowMs() });
    response.once("close", () => this.#open.delete(response));
  }

  /** Logs the open answers, which are cut now. */
  cut(): void {
    const answers = [...this.#open]
      .slice(0, GATEWAY_CUT_SHOWN)
      .map(([response, { request, sinceMs }]): Cut => ({
        path: pathOf(request),
        id: String(request.headers["x-request-id"] ?? response.getHeader("x-request-id") ?? ""),
        ms: Math.round(nowMs() - sinceMs),
      }));
    this.cutCount(this.#open.size, { answers });
  }

  /** Logs how many answers are cut now; 0: nothing to log. */
  cutCount(count: number, more: object = {}): void {
    const { drainMs, logger } = this.#options;
    const fix = "set [gateway] drain_ms to the time of the longest answers";
    if (count > 0) logger.warn({ count, drainMs, fix, ...more }, "open answers were cut");
  }
}
