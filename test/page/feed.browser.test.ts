// Owns the proof that a page that stays open for an hour does not grow: an hour's accounts, told as fast as it takes them.
import { afterAll, expect, test, vi } from "vitest";
import { servePage } from "../../src/page/process/serve.ts";
import { launchBrowser } from "../support/browser.ts";
import type { Page } from "../support/browser.ts";
import { openRestored, restoreAgain } from "../support/pages.ts";
import { testConfig } from "../support/sidecars.ts";
import { closeAfterTest } from "../support/vaults.ts";

/** Of a second's accounts in an hour. */
const ACCOUNTS = 3600;
/** All that is kept is there by then: the last quarter of an hour. */
const FULL = 900;
const GROWN_BYTES_MAX = 20e6;
const TIMEOUT_MS = 600_000;

vi.mock("../../src/base/limits/seen.ts", async (original) => ({
  ...(await original<object>()),
  PAGE_SAMPLE_MS: 5,
}));

const isLong = process.env["TIERKV_TEST_LONG"] !== undefined;
const launched = isLong ? await launchBrowser() : "TIERKV_TEST_LONG is not set";
const browser = typeof launched === "string" ? null : launched;
if (isLong && typeof launched === "string")
  console.warn(`no browser, so no page stays open in one: ${launched}`);

afterAll(async () => await browser?.close());

interface Size {
  heap: number;
  nodes: number;
  listeners: number;
}

/** What is left after everything was collected that could be. */
async function sizeOf(page: Page): Promise<Size> {
  const session = await page.context().newCDPSession(page);
  await session.send("HeapProfiler.collectGarbage");
  const { nodes, jsEventListeners } = await session.send("Memory.getDOMCounters");
  const { usedSize } = await session.send("Runtime.getHeapUsage");
  return { heap: usedSize, nodes, listeners: jsEventListeners };
}

test.runIf(browser !== null)(
  "an hour open it grows by less than 20 MB, and by no node",
  { timeout: TIMEOUT_MS },
  async () => {
    const scene = await openRestored();
    const config = testConfig({ socket: scene.sidecar.socketPath });
    const server = closeAfterTest(
      await servePage(
        { ...config, gateway: { ...config.gateway, socket: "/nonexistent" } },
        undefined,
      ),
    );
    const page = await browser!.newPage({
      colorScheme: "light",
      locale: "en-US",
      viewport: { width: 1100, height: 900 },
    });
    closeAfterTest({ close: () => page.close() });
    await page.goto(server.url);
    await page.evaluate(`(() => {
      window.accounts = 0;
      new EventSource("events").addEventListener("view", () => (window.accounts += 1));
    })()`);
    const after = async (count: number): Promise<Size> => {
      await expect
        .poll(
          async () => {
            await restoreAgain(scene);
            return await page.evaluate<number>("window.accounts");
          },
          { timeout: TIMEOUT_MS, interval: 200 },
        )
        .toBeGreaterThanOrEqual(count);
      return await sizeOf(page);
    };
    const first = await after(10);
    const full = await after(FULL);
    const last = await after(ACCOUNTS);
    console.info(`a page that is open for an hour: ${JSON.stringify({ first, full, last })}`);
    expect(last.heap - first.heap).toBeLessThan(GROWN_BYTES_MAX);
    // Rows of restores are there from the first ones on; nothing is left behind by what replaces them.
    expect(last.nodes - full.nodes).toBeLessThan(full.nodes / 2);
    expect(last.listeners).toBe(full.listeners);
  },
);
