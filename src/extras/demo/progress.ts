// Owns the demo's progress output: a line per step, with a heartbeat during long ones.
import { DEMO_HEARTBEAT_MS } from "../../base/limits/general.ts";
import { nowMs } from "../../base/time.ts";
import { showSeconds } from "./format.ts";

/** Output of progress: stderr, or a test's own. */
export interface Screen {
  isTTY?: boolean;
  columns?: number;
  write(text: string): unknown;
}

const REDRAW_MS = 250;
const ERASE_LINE = "\r\u001B[K";

export class Progress {
  readonly #screen: Screen;
  readonly #startedMs = nowMs();

  constructor(screen: Screen) {
    this.#screen = screen;
  }

  /** A line of its own. */
  line(text: string): void {
    this.#screen.write(`${text}\n`);
  }

  /**
   * Shows `title` while `work` runs: redrawn in place on a terminal, else a line at the start and one every
   * DEMO_HEARTBEAT_MS. `detail` gives the current state; `result` words the outcome.
   */
  async step<T>(
    title: string,
    work: () => Promise<T>,
    { detail, result }: { detail?: () => string; result?: (value: T) => string } = {},
  ): Promise<T> {
    const { isTTY = false, columns = 80 } = this.#screen;
    const startedMs = nowMs();
    const tookS = (): string => showSeconds(nowMs() - startedMs);
    const draw = (): void => {
      const said = [tookS(), detail?.() ?? ""].filter(Boolean).join("  ");
      if (!isTTY) return this.line(`${this.#clock()}  ... ${title}: ${said}`);
      const text = `${this.#clock()}  ${title} ... ${said}`;
      this.#screen.write(ERASE_LINE + text.slice(0, columns - 1));
    };
    const end = (outcome: string): void =>
      this.line(`${isTTY ? ERASE_LINE : ""}${this.#clock()}  ${title}: ${outcome} (${tookS()})`);
    if (isTTY) draw();
    else this.line(`${this.#clock()}  ${title}`);
    const timer = setInterval(draw, isTTY ? REDRAW_MS : DEMO_HEARTBEAT_MS);
    try {
      const value = await work();
      end(result?.(value) ?? "done");
      return value;
    } catch (error) {
      end("failed");
      throw error;
    } finally {
      clearInterval(timer);
    }
  }

  /** Time since the start of the demo, as wide for the first step as for the last. */
  #clock(): string {
    const seconds = Math.floor((nowMs() - this.#startedMs) / 1000);
    const minutes = String(Math.floor(seconds / 60)).padStart(2);
    return `[${minutes}:${String(seconds % 60).padStart(2, "0")}]`;
  }
}
