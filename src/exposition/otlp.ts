// Owns the queue of spans to an OpenTelemetry collector: gathered, sent in batches, and dropped while it refuses them.
import { fetchReason } from "../base/errors.ts";
import type { Running } from "../base/lifecycle.ts";
import {
  SPANS_CLOSE_MS,
  SPANS_GATHER_MS,
  SPANS_PER_CALL_MAX,
  SPANS_QUEUED_MAX,
  SPANS_TIMEOUT_MS,
} from "../base/limits/seen.ts";
import type { Logger } from "../base/log.ts";
import type { Span } from "./spans.ts";

export interface OtlpOptions {
  /** Without `/v1/traces`. */
  endpoint: string;
  /** The process that sends them. */
  service: "tierkv-sidecar" | "tierkv-vault";
  version: string;
  counters: { add(name: "spans_sent" | "spans_dropped", count: number): void };
  logger: Logger;
}

const text = (key: string, stringValue: string): object => ({ key, value: { stringValue } });

export class OtlpExporter implements Running {
  readonly #options: OtlpOptions;
  readonly #url: string;
  readonly #closing = new AbortController();
  readonly #queue: Span[] = [];
  #timer: NodeJS.Timeout | undefined;
  #sending: Promise<void> | null = null;

  constructor(options: OtlpOptions) {
    this.#options = options;
    this.#url = `${options.endpoint.replace(/\/+$/, "")}/v1/traces`;
  }

  add(spans: readonly Span[]): void {
    if (this.#queue.length + spans.length > SPANS_QUEUED_MAX) this.drop(spans.length);
    else this.#queue.push(...spans);
    this.#gather();
  }

  /** Counts spans that are not sent. */
  drop(count: number): void {
    this.#options.counters.add("spans_dropped", count);
  }

  /** Sends waiting spans once more, for at most SPANS_CLOSE_MS. */
  async close(): Promise<void> {
    clearTimeout(this.#timer);
    const late = setTimeout(() => this.#closing.abort(), SPANS_CLOSE_MS);
    await this.#sending;
    while (this.#queue.length > 0) await this.#send();
    clearTimeout(late);
  }

  #gather(): void {
    if (this.#timer !== undefined || this.#sending !== null || this.#queue.length === 0) return;
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      this.#sending = this.#send().finally(() => {
        this.#sending = null;
        this.#gather();
      });
    }, SPANS_GATHER_MS);
    this.#timer.unref();
  }

  /** Never rejects. */
  async #send(): Promise<void> {
    const spans = this.#queue.splice(0, SPANS_PER_CALL_MAX);
    const { service, version, counters, logger, endpoint } = this.#options;
    const resource = { attributes: [text("service.name", service)] };
    const scopeSpans = [{ scope: { name: "tierkv", version }, spans }];
    try {
      const response = await fetch(this.#url, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ resourceSpans: [{ resource, scopeSpans }] }),
        redirect: "error",
        signal: AbortSignal.any([AbortSignal.timeout(SPANS_TIMEOUT_MS), this.#closing.signal]),
      });
      await response.body?.cancel();
      if (!response.ok) throw new Error(`it answered ${response.status}`);
      counters.add("spans_sent", spans.length);
    } catch (error) {
      this.drop(spans.length);
      logger.warn(
        { endpoint, reason: fetchReason(error) },
        "the collector of traces accepted no spans",
      );
    }
  }
}
