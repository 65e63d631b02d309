// Owns the bound of the memory in which V8 makes new objects: it would take 32 to 64 MB, and collects little more often with less.
import { PerformanceObserver } from "node:perf_hooks";
import { getHeapSpaceStatistics, setFlagsFromString } from "node:v8";
import { GATEWAY_YOUNG_BYTES } from "../../base/limits/gateway.ts";

/** Bytes of that memory now. */
export function youngBytes(): number {
  const young = getHeapSpaceStatistics().find(({ space_name: name }) => name === "new_space");
  return young?.space_size ?? 0;
}

/**
 * Ends its growth once it has GATEWAY_YOUNG_BYTES. V8 reads this flag whenever it would grow; its own bound,
 * `--max-semi-space-size`, counts only on the command line.
 */
export function boundYoungGeneration(): void {
  const observer = new PerformanceObserver(() => {
    if (youngBytes() < GATEWAY_YOUNG_BYTES) return;
    setFlagsFromString("--semi-space-growth-factor=1");
    observer.disconnect();
  });
  observer.observe({ entryTypes: ["gc"] });
}
