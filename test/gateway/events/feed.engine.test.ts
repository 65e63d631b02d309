// Owns the proof that a warm engine's whole history comes through vLLM's own publisher, whose socket drops what is not read in time.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { expect, onTestFinished, test } from "vitest";
import { EventFeed } from "../../../src/gateway/events/feed.ts";
import { BlockIndex } from "../../../src/gateway/index/index-of-blocks.ts";
import { SILENT, until } from "../../support/gateways.ts";

/** As many as vLLM keeps for replays. */
const BATCHES = 10_000;
const BLOCKS = 16;
const MINUTES = 60_000;

test(
  "every block that an engine has published is known to a gateway that comes later",
  async () => {
    const script = new URL("engine_publisher.py", import.meta.url).pathname;
    const engine = spawn(".venv/bin/python", [script, String(BATCHES), String(BLOCKS)], {
      env: { ...process.env, VLLM_LOGGING_LEVEL: "ERROR" },
      stdio: ["pipe", "pipe", "inherit"],
    });
    onTestFinished(() => void engine.kill());
    const lines = createInterface({ input: engine.stdout });
    const [line] = (await Promise.race([once(lines, "line"), once(engine, "exit")])) as [string];
    const [events, replays] = JSON.parse(line) as [string, string];
    const index = new BlockIndex(1);
    const seen = { batches: 0, drops: 0 };
    const feed = new EventFeed({
      events,
      replays,
      resume: null,
      logger: SILENT,
      sink: {
        apply(payload) {
          seen.batches += 1;
          return index.apply(0, payload);
        },
        clear() {
          seen.drops += 1;
          index.clear(0);
        },
        trust: (isTrusted) => index.trust(0, isTrusted),
      },
    });
    onTestFinished(() => feed.close());
    const begun = performance.now();
    feed.start();
    await until(() => feed.state === "live");
    const seconds = (performance.now() - begun) / 1000;
    const blocks = index.blocks(0);
    process.stdout.write(`replay ${JSON.stringify({ ...seen, blocks, seconds })}\n`);
    expect(blocks).toBe(BATCHES * BLOCKS);
    // Each batch was applied once, and nothing was forgotten on the way.
    expect(seen).toEqual({ batches: BATCHES, drops: 1 });
  },
  5 * MINUTES,
);
