// Owns the events sent to open pages: the status of sidecar and gateway, and past points for charts.
import type { ServerResponse } from "node:http";
import { toTierkvError } from "../base/errors.ts";
import {
  PAGE_BEHIND_BYTES_MAX,
  PAGE_IDLE_SAMPLES,
  PAGE_POINTS_MAX,
  PAGE_SAMPLE_MS,
  PAGE_VIEWERS_MAX,
} from "../base/limits/seen.ts";
import type { ShownFleet } from "../gateway/control.ts";
import type { SidecarStatus } from "../sidecar/status.ts";

/** The status that a page shows, and its findings. */
export interface View {
  /** null: only a gateway runs. */
  status: SidecarStatus | null;
  /** null: no gateway runs. */
  fleet: ShownFleet | null;
  findings: readonly { severity: string; text: string }[];
}

/** One request in the words of `tierkv explain`. */
export interface ExplainedRequest {
  req: string;
  at: number;
  /** Reason for its first missing block; null: none missed. */
  miss: string | null;
  lines: readonly string[];
}

export interface PageSource {
  view(): Promise<View>;
  /** Returns the latest requests, newest last. */
  requests(): Promise<ExplainedRequest[]>;
}

/** Totals since the sidecar started; a page shows their differences. */
export interface Point {
  at: number;
  fetchedBytes: number;
  sentBytes: number;
  misses: Readonly<Record<string, number>>;
}

const MISS = "miss_";

export class Feed {
  readonly #source: PageSource;
  readonly #points: Point[] = [];
  readonly #viewers = new Set<ServerResponse>();
  readonly #timer: NodeJS.Timeout;
  #samples = 0;
  #isAsking = false;

  constructor(source: PageSource) {
    this.#source = source;
    this.#timer = setInterval(() => void this.#sample(), PAGE_SAMPLE_MS);
    void this.#sample();
  }

  /** Streams events to a page until either side ends it; false when too many pages are open. */
  join(response: ServerResponse): boolean {
    if (this.#viewers.size >= PAGE_VIEWERS_MAX) return false;
    this.#viewers.add(response);
    response.on("close", () => this.#viewers.delete(response));
    response.write(event("history", this.#points));
    void this.#sample();
    return true;
  }

  close(): void {
    clearInterval(this.#timer);
    for (const viewer of this.#viewers) viewer.destroy();
  }

  async #sample(): Promise<void> {
    const isDue = this.#viewers.size > 0 || this.#samples % PAGE_IDLE_SAMPLES === 0;
    this.#samples += 1;
    if (!isDue || this.#isAsking) return;
    this.#isAsking = true;
    try {
      const view = await this.#source.view();
      if (view.status !== null) this.#keep(pointOf(view.status));
      this.#tell(event("view", view));
    } catch (error) {
      this.#tell(event("trouble", { text: toTierkvError(error).message }));
    } finally {
      this.#isAsking = false;
    }
  }

  #keep(point: Point): void {
    // Totals that fell belong to another sidecar, so the points start anew.
    const last = this.#points.at(-1);
    if (last !== undefined && point.fetchedBytes < last.fetchedBytes) this.#points.length = 0;
    this.#points.push(point);
    if (this.#points.length > PAGE_POINTS_MAX) this.#points.shift();
  }

  #tell(text: string): void {
    for (const viewer of this.#viewers) {
      if (viewer.writableLength > PAGE_BEHIND_BYTES_MAX) viewer.destroy();
      else viewer.write(text);
    }
  }
}

function pointOf({ at, counters }: SidecarStatus): Point {
  const misses = Object.entries(counters)
    .filter(([name]) => name.startsWith(MISS))
    .map(([name, count]) => [name.slice(MISS.length), count] as const);
  return {
    at,
    fetchedBytes: counters["bytes_fetched"] ?? 0,
    sentBytes: counters["bytes_sent"] ?? 0,
    misses: Object.fromEntries(misses),
  };
}

/** JSON text contains no line breaks, which would end the event. */
function event(name: string, data: unknown): string {
  return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}
