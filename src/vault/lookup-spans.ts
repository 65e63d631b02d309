// Owns the spans of look-ups that come over gRPC: a client asks so while its lanes are down. Those of lanes are the core's.
import { SPANS_QUEUED_MAX } from "../limits/seen.ts";
import type { LaneSpans } from "../native.ts";
import { nowMs, wallClockMs } from "../time.ts";
import { isContext } from "../trace-context.ts";

export class LookupSpans {
  #ended: LaneSpans = { spans: [], dropped: 0 };

  /** Runs a look-up of so many records, and keeps a span of it where `context` is one. `count`: how many are held. */
  run<Found>(
    context: Buffer,
    records: number,
    find: () => Found,
    count: (found: Found) => number,
  ): Found {
    if (!isContext(context)) return find();
    const [begunMs, fromMs] = [wallClockMs(), nowMs()];
    const found = find();
    const { spans } = this.#ended;
    if (spans.length >= SPANS_QUEUED_MAX) this.#ended.dropped += 1;
    else {
      const span = { context, asked: "lookup", begunMs, records, bytes: 0 };
      spans.push({ ...span, tookMs: nowMs() - fromMs, done: count(found) });
    }
    return found;
  }

  /** With those of lanes: what ended since the last time. */
  takeWith(lanes: LaneSpans): LaneSpans {
    const own = this.#ended;
    this.#ended = { spans: [], dropped: 0 };
    return { spans: [...lanes.spans, ...own.spans], dropped: lanes.dropped + own.dropped };
  }
}
