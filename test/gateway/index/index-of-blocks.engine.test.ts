// Owns the proof that what the index promises of a prompt is what vLLM's own scheduler reuses: whole groups, windows and states.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { expect, onTestFinished, test } from "vitest";
import { IndexCore } from "../../../src/base/native.ts";
import { DEFAULT_SEED, hashesOf, rootOf } from "../../../src/gateway/hashes/forms.ts";

/** Requests by shape of the model's groups (engine_cache.py). */
const SHAPES = {
  llama: 400,
  gemma: 400,
  "gemma-32": 300,
  windows: 200,
  hybrid: 300,
  "hybrid-64": 200,
  "hybrid-fine": 200,
};
const BOUNDS = { blocks: 1_000_000, guessMs: 1, foundMs: 1, found: 10 };
const MINUTES = 60_000;
/** Share of the reused tokens by which promises may differ, up or down. */
const SHARE = 0.02;

type Line =
  | { t: "shape"; name: string; unit: number }
  | { t: "ask"; id: string; tokens: number[]; salt: string | null; scores: boolean }
  | { t: "batch"; data: string }
  | { t: "reused"; id: string; tokens: number };

interface Sum {
  requests: number;
  promised: number;
  reused: number;
  differing: number;
}

const BASE = { algorithm: "sha256", root: rootOf("sha256", DEFAULT_SEED) } as const;

/** What one engine's index promises, in the order of the engine's own steps. */
class Promises {
  readonly sum: Sum = { requests: 0, promised: 0, reused: 0, differing: 0 };
  readonly #index = new IndexCore(BOUNDS);
  readonly #holder = this.#index.add();
  readonly #unit: number;
  readonly #made = new Map<string, number>();
  /** Guesses end with the next batch, because it confirms them. */
  #now = 0;

  constructor(unit: number) {
    this.#unit = unit;
    this.#index.trust(this.#holder, true);
  }

  async ask({ id, tokens, salt, scores }: Extract<Line, { t: "ask" }>): Promise<void> {
    const unit = this.#unit;
    const blocks = await hashesOf(BASE, tokens, unit, [{ adapter: null, salt }, "tagged"]);
    const view = { blocks, areNames: false, unit, tokens: tokens.length };
    const [held = 0] = this.#index.spans(
      Uint32Array.of(this.#holder),
      Uint32Array.of(),
      view,
      this.#now,
    );
    // Such a request reads no cache: the gateway counts it as wholly computed.
    this.#made.set(id, scores ? 0 : held);
    this.#index.guess(this.#holder, view, this.#now);
  }

  batch(data: string): void {
    this.#now += 1;
    const report = this.#index.apply(this.#holder, Buffer.from(data, "base64"));
    expect([report?.lost, report?.skipped]).toEqual([undefined, undefined]);
  }

  reused(id: string, tokens: number): void {
    const promised = this.#made.get(id)!;
    this.sum.requests += 1;
    this.sum.promised += promised;
    this.sum.reused += tokens;
    this.sum.differing += Math.abs(promised - tokens);
  }
}

test(
  "promised and reused tokens differ by two in a hundred at most, in models of every shape",
  async () => {
    const script = new URL("engine_cache.py", import.meta.url).pathname;
    const shapes = Object.entries(SHAPES).map(([name, requests]) => `${name}=${requests}`);
    const engine = spawn(".venv/bin/python", [script, ...shapes], {
      env: { ...process.env, VLLM_LOGGING_LEVEL: "ERROR" },
      stdio: ["ignore", "pipe", "pipe"],
    });
    onTestFinished(() => void engine.kill());
    let said = "";
    engine.stderr
      .setEncoding("utf8")
      .on("data", (text: string) => (said = (said + text).slice(-2000)));
    const ended = once(engine, "exit");
    const found = new Map<string, Promises>();
    let current: Promises | null = null;
    for await (const text of createInterface({ input: engine.stdout })) {
      const line = JSON.parse(text) as Line;
      if (line.t === "shape") {
        current = new Promises(line.unit);
        found.set(line.name, current);
      } else if (line.t === "ask") await current!.ask(line);
      else if (line.t === "batch") current!.batch(line.data);
      else current!.reused(line.id, line.tokens);
    }
    expect((await ended)[0], said).toBe(0);
    const sums = [...found].map(([name, { sum }]) => ({ name, ...sum }));
    process.stdout.write(`${sums.map((sum) => JSON.stringify(sum)).join("\n")}\n`);
    expect(
      sums.map(({ name, requests }) => [name, requests >= SHAPES[name as keyof typeof SHAPES]]),
    ).toEqual(Object.keys(SHAPES).map((name) => [name, true]));
    for (const { name, reused, differing } of sums) {
      // A promise of nothing would pass where nothing is reused.
      expect(reused, name).toBeGreaterThan(10_000);
      expect(differing, name).toBeLessThanOrEqual(SHARE * reused);
    }
  },
  10 * MINUTES,
);
