// Owns the transfer of a vault's spans to the collector: taken from its lanes periodically, and at the end.
import type { Running } from "../base/lifecycle.ts";
import { SPANS_GATHER_MS } from "../base/limits/seen.ts";
import type { LaneSpans } from "../base/native.ts";
import type { OtlpExporter } from "./otlp.ts";
import { spanOfVault } from "./spans.ts";

export class VaultTracing implements Running {
  readonly #exporter: OtlpExporter;
  readonly #take: () => LaneSpans | null;
  readonly #timer: NodeJS.Timeout;

  /** `exporter` is closed with it. `take` gives the spans ended since the last call; null: the vault has not begun. */
  constructor(exporter: OtlpExporter, take: () => LaneSpans | null) {
    this.#exporter = exporter;
    this.#take = take;
    this.#timer = setInterval(() => this.#move(), SPANS_GATHER_MS);
    this.#timer.unref();
  }

  async close(): Promise<void> {
    clearInterval(this.#timer);
    this.#move();
    await this.#exporter.close();
  }

  #move(): void {
    const { spans, dropped } = this.#take() ?? { spans: [], dropped: 0 };
    if (spans.length > 0) this.#exporter.add(spans.map(spanOfVault));
    if (dropped > 0) this.#exporter.drop(dropped);
  }
}
