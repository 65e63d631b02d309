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
 * Ends its growth while it has GATEWAY_YOUNG_BYTES. V8 reads this flag whenever it would grow; its own bound,
 * `--max-semi-space-size`, counts only on the command line. V8 makes that memory small in quiet times, and it must grow
 * again after them: collections would come eight times as often, and call old what lives as long as one request.
 */
export function boundYoungGeneration(): void {
  let isGrowing = true;
  const observer = new PerformanceObserver(() => {
    const mayGrow = youngBytes() < GATEWAY_YOUNG_BYTES;
    if (mayGrow === isGrowing) return;
    isGrowing = mayGrow;
    setFlagsFromString(`--semi-space-growth-factor=${mayGrow ? 2 : 1}`);
  });
  observer.observe({ entryTypes: ["gc"] });
}
