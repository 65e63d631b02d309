// Owns asking one engine how many data-parallel ranks it has: `/kv_event_sources`, which vLLM serves since 0.32.
import { GATEWAY_RANKS_MS, GATEWAY_RANKS_RETRY_MS } from "../../base/limits/gateway.ts";
import { withDeadline } from "../../base/time.ts";
import type { Engine } from "../engines/engine.ts";

const PATH = "/kv_event_sources";
const ANSWER_BYTES_MAX = 65_536;

/** Asks until the engine answers, and again where another process may answer; until closed. */
export class Ranks {
  readonly #engine: Engine;
  readonly #onRanks: (count: number) => void;
  readonly #isLive: () => boolean;
  #timer: NodeJS.Timeout | undefined;
  #isClosed = false;
  /** How often the engine had come up when it answered. */
  #answeredAt = -1;

  /** `onRanks` takes the number of ranks; `isLive`: the events of rank 0 come. */
  constructor(engine: Engine, onRanks: (count: number) => void, isLive: () => boolean) {
    this.#engine = engine;
    this.#onRanks = onRanks;
    this.#isLive = isLive;
  }

  /** Resolves after the engine was asked; the next questions follow on a timer. */
  async start(): Promise<void> {
    await this.#ask();
    if (this.#isClosed) return;
    this.#timer = setTimeout(() => void this.start(), GATEWAY_RANKS_RETRY_MS);
    this.#timer.unref();
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
  }

  async #ask(): Promise<void> {
    const engine = this.#engine;
    const { rises } = engine;
    if (!engine.isUp || !this.#isLive() || rises === this.#answeredAt) return;
    try {
      const asked = engine.askText({ method: "GET", path: PATH }, ANSWER_BYTES_MAX);
      const { statusCode, text } = await withDeadline(asked, GATEWAY_RANKS_MS, `asking ${PATH}`);
      if (this.#isClosed) return;
      // A release without the route has ranks that nobody tells of.
      if (statusCode === 200 && text !== null) this.#onRanks(Math.max(1, ranksIn(text)));
      this.#answeredAt = rises;
    } catch {
      // Asked again later: an engine that cannot answer shows in its health.
    }
  }
}

/** Counts the ranks 0, 1, ... of an answer: `{"0": {...}, "1": {...}}`. */
function ranksIn(text: string): number {
  const sources: unknown = JSON.parse(text);
  if (typeof sources !== "object" || sources === null) return 0;
  let count = 0;
  while (String(count) in sources) count += 1;
  return count;
}
