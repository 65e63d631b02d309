// Owns the types of fault-proxy.js, which is JavaScript so that Node runs it as it is.

/** Which faults to act. `...At` counts chunks of the chosen direction from when the faults were set; 0 = never. */
export interface Faults {
  /** Which chunks are counted and damaged: what a vault sends (fetch) or what a client sends (store). */
  direction: "fetch" | "store";
  /** Flips one payload bit in every N-th chunk. */
  corruptEvery: number;
  /** Flips one payload bit in the N-th chunk. */
  corruptAt: number;
  /** Swaps the item numbers of the N-th chunk, a whole record, and of the next that is one. */
  swapAt: number;
  /** Resets every client connection instead of passing on the N-th chunk. */
  dropAt: number;
  /** Swallows the N-th chunk and all that follows on its lane. */
  hangAt: number;
  /** Waits before every chunk, and before whatever a client asks. */
  delayMs: number;
  /** Lets so many record bytes pass per second, both directions and all lanes together; 0: all. */
  bytesPerSecond: number;
}

/** What really happened: a test asserts these, so that a fault that did not act cannot pass. */
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
  /** Replaces all faults; those not named are off. */
  set(faults: Partial<Faults>): void;
  close(): Promise<void>;
}

export function startFaultProxy(options: {
  target: string;
  listen?: string;
  faults?: Partial<Faults>;
}): Promise<FaultProxy>;
