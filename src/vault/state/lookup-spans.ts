// Owns the spans of look-ups over gRPC, which clients use while their lanes are down; the core owns those of lanes.
import { SPANS_QUEUED_MAX } from "../../base/limits/seen.ts";
import type { LaneSpans } from "../../base/native.ts";
import { nowMs, wallClockMs } from "../../base/time.ts";
import { isContext } from "../../base/trace-context.ts";

export class LookupSpans {
  #ended: LaneSpans = { spans: [], dropped: 0 };

  /** Runs a look-up of `records` keys and keeps its span where `context` is valid; `count` returns the hits. */
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

  /** Returns the spans of lanes and of gRPC that ended since the last call. */
  takeWith(lanes: LaneSpans): LaneSpans {
    const own = this.#ended;
    this.#ended = { spans: [], dropped: 0 };
    return { spans: [...lanes.spans, ...own.spans], dropped: lanes.dropped + own.dropped };
  }
}
