// Owns the types of fault-proxy.js, which is JavaScript because Node runs it without a build.

/** Faults to inject. `...At` counts chunks of the chosen direction since the faults were set; 0 = never. */
export interface Faults {
  /** Direction of counted and damaged chunks: from a vault (fetch) or from a client (store). */
  direction: "fetch" | "store";
  /** Flips one payload bit in every N-th chunk. */
  corruptEvery: number;
  /** Flips one payload bit in the N-th chunk. */
  corruptAt: number;
  /** Swaps the item numbers of the N-th chunk, a whole record, and the next whole one. */
  swapAt: number;
  /** Resets every client connection instead of passing on the N-th chunk. */
  dropAt: number;
  /** Swallows the N-th chunk and all that follows on its lane. */
  hangAt: number;
  /** Waits before every chunk, and before every request of a client. */
  delayMs: number;
  /** Limits record bytes per second over both directions and all lanes; 0: no limit. */
  bytesPerSecond: number;
}

/** Faults that really happened; tests assert them, because a fault that did not act must not pass. */
export interface FaultCounts {
  connections: number;
  chunks: number;
  corrupted: number;
  swapped: number;
  dropped: number;
  hung: number;
  delayed: number;
}

export interface FaultProxy {
  readonly address: string;
  counts(): FaultCounts;
  /** Replaces all faults; unnamed ones are off. */
  set(faults: Partial<Faults>): void;
  close(): Promise<void>;
}

export function startFaultProxy(options: {
  target: string;
  listen?: string;
  faults?: Partial<Faults>;
}): Promise<FaultProxy>;
