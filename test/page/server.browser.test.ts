// Owns the proof of the page in a real browser: it paints, it obeys its policy, it can be read by all, and it does not grow.
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, test as always } from "vitest";
import { servePage } from "../../src/page/process/serve.ts";
import { launchBrowser } from "../support/browser.ts";
import type { Page } from "../support/browser.ts";
import { call, gatewayBefore } from "../support/gateways.ts";
import { openRestored, restoreAgain } from "../support/pages.ts";
import type { Scene } from "../support/scene.ts";
import { hashesOf, makeBlocks } from "../support/shim-client.ts";
import { testConfig } from "../support/sidecars.ts";
import { closeAfterTest } from "../support/vaults.ts";

const AXE = "axe-core/axe.min.js";
const SHOTS = fileURLToPath(new URL("../../docs/images/", import.meta.url));
const TIMEOUT_MS = 60_000;
/** A small ring, or a line on the ground. */
const PAINTED_MIN = 10;

/** Of the first two lines; where both are at zero the second hides the first. */
const COLOURS = {
  light: [
    [0x0b, 0x62, 0xa8],
    [0xa8, 0x5b, 0x00],
  ],
  dark: [
    [0x6c, 0xb6, 0xff],
    [0xff, 0xb4, 0x54],
  ],
} as const;
const isLong = process.env["TIERKV_TEST_LONG"] !== undefined;
const isSaving = process.env["TIERKV_TEST_SHOTS"] !== undefined;

const launched = isLong ? await launchBrowser() : "TIERKV_TEST_LONG is not set";
const browser = typeof launched === "string" ? null : launched;
if (isLong && typeof launched === "string")
  console.warn(`no browser, so the page is not tested in one: ${launched}`);

afterAll(async () => await browser?.close());

interface Opened {
  page: Page;
  scene: Scene;
  /** What the browser complained of. */
  complaints: string[];
}

async function open(
  look: {
    colorScheme?: "light" | "dark";
    width?: number;
    gateway?: string;
    /** What the browser names as its language. */
    language?: string;
  } = {},
): Promise<Opened> {
  const scene = await openRestored();
  const config = testConfig({ socket: scene.sidecar.socketPath });
  const { gateway: socket = "/nonexistent" } = look;
  const server = closeAfterTest(
    await servePage({ ...config, gateway: { ...config.gateway, socket } }, undefined),
  );
  const { colorScheme = "light", width = 1100 } = look;
  const page = await browser!.newPage({
    colorScheme,
    locale: "en-US",
    viewport: { width, height: 900 },
  });
  closeAfterTest({ close: () => page.close() });
  const { language } = look;
  if (language !== undefined) {
    const named = JSON.stringify({ value: language, configurable: true });
    await page.addInitScript(`Object.defineProperty(navigator, "language", ${named})`);
  }
  const complaints: string[] = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(String(error)));
  await page.goto(server.url);
  await page.waitForSelector('body[data-restores="1"]');
  return { page, scene, complaints };
}

/** Pixels of each chart in the colours of its lines: axes do not count. */
async function painted(page: Page, scheme: keyof typeof COLOURS): Promise<number[]> {
  const text = `[...document.querySelectorAll(".chart canvas")].map((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const isAt = (at) => (colour) => colour.every((part, index) => Math.abs(data[at + index] - part) < 8);
    let count = 0;
    for (let at = 0; at < data.length; at += 4) if (${JSON.stringify(COLOURS[scheme])}.some(isAt(at))) count += 1;
    return count;
  })`;
  return await page.evaluate<number[]>(text);
}

const test = always.runIf(browser !== null);

describe.each(["light", "dark"] as const)("in a %s scheme", (colorScheme) => {
  test(
    "all charts are painted, nothing is complained of, and axe finds nothing serious",
    async () => {
      const { page, scene, complaints } = await open({ colorScheme });
      for (let more = 2; more < 5; more += 1) await restoreAgain(scene);
      await scene.engine.done(scene.engine.prefetch(hashesOf(makeBlocks("more", 2, 1024))));
      await page.waitForSelector('body[data-restores="4"]');
      const isPainted = async (): Promise<boolean[]> =>
        (await painted(page, colorScheme)).map((count) => count > PAINTED_MIN);
      await expect.poll(isPainted, { timeout: TIMEOUT_MS / 2 }).toEqual([true, true, true]);
      expect(await page.locator("#restores tbody tr").count()).toBe(4);
      // Beside the page's own policy, which allows no script of a stranger.
      await page.evaluate(readFileSync(createRequire(import.meta.url).resolve(AXE), "utf8"));
      const found = await page.evaluate<{ violations: { id: string; impact: string }[] }>(
        "axe.run()",
      );
      const serious = found.violations.filter(({ impact }) => /serious|critical/.test(impact));
      expect(serious).toEqual([]);
      expect(complaints).toEqual([]);
      if (!isSaving || colorScheme === "dark") return;
      mkdirSync(SHOTS, { recursive: true });
      await page.screenshot({ path: `${SHOTS}page-light.png`, fullPage: true });
    },
    TIMEOUT_MS,
  );
});

test(
  "a browser that names a language which Intl refuses, as Chromium does under LANG=C.UTF-8, shows the page",
  async () => {
    const { page, complaints } = await open({ language: "en-US@posix" });
    expect(await page.locator("#restores tbody tr").count()).toBe(1);
    expect(complaints).toEqual([]);
  },
  TIMEOUT_MS,
);

test(
  "the engines of a gateway are shown, also once one of them, or the sidecar, is gone",
  async () => {
    const fleet = await gatewayBefore([["m"], ["m"]], { preset: "earliest-token" });
    const [first, second] = fleet.engines;
    const body = JSON.stringify({ model: "m", prompt: [1, 2, 3, 4], stream: true });
    await call(fleet.url, "/v1/completions", { body });
    const { page, scene, complaints } = await open({ gateway: fleet.socket, width: 375 });
    const row = (name: string, text: string): Promise<void> =>
      page.locator(`#fleet tr:has(td:text-is("${name}"))`, { hasText: text }).waitFor();
    const asked = first!.asked.length > 0 ? first : second;
    await row(asked!.name, "ms (");
    await second!.kill();
    await row(second!.name, "DOWN");
    expect(await page.evaluate("document.documentElement.scrollWidth")).toBeLessThanOrEqual(375);
    await page.evaluate(readFileSync(createRequire(import.meta.url).resolve(AXE), "utf8"));
    const { violations } = await page.evaluate<{ violations: { impact: string }[] }>("axe.run()");
    expect(violations.filter(({ impact }) => /serious|critical/.test(impact))).toEqual([]);
    await scene.sidecar.close();
    await page.locator("#self", { hasText: "no sidecar runs here" }).waitFor();
    await row(first!.name, "up");
    expect(await page.evaluate('document.querySelector("#restores").checkVisibility()')).toBe(
      false,
    );
    await fleet.close();
    await page.locator("#link", { hasText: "does not answer" }).waitFor();
    expect(complaints).toEqual([]);
  },
  TIMEOUT_MS,
);

test(
  "at 375 px nothing is wider than the window",
  async () => {
    const { page, complaints } = await open({ width: 375 });
    expect(await page.evaluate("document.documentElement.scrollWidth")).toBeLessThanOrEqual(375);
    expect(complaints).toEqual([]);
  },
  TIMEOUT_MS,
);

test(
  "a restore that is alone stands in the middle of its chart",
  async () => {
    const { page } = await open();
    const place = `(() => {
      const { data, width } = ((at) => at.getContext("2d").getImageData(0, 0, at.width, at.height))(
        document.querySelector("#chart-restores canvas"),
      );
      const [red, green, blue] = ${JSON.stringify(COLOURS.light[0])};
      const found = [];
      for (let at = 0; at < data.length; at += 4)
        if (data[at] === red && data[at + 1] === green && data[at + 2] === blue) found.push((at / 4) % width);
      return found.reduce((sum, x) => sum + x, 0) / found.length / width;
    })()`;
    await expect.poll(() => page.evaluate<number>(place)).toBeGreaterThan(0.4);
    expect(await page.evaluate<number>(place)).toBeLessThan(0.7);
  },
  TIMEOUT_MS,
);

test(
  "a vault of both classes has one row, and its classes apart where they differ",
  async () => {
    const { page } = await open();
    const classes = (address: string): string => `(async () => {
      const { showVaults } = await import("./tables.js");
      const vault = { address: "a:1", state: "up", lanes: "up", share: 1, holes: 0, moved: 0, tier: "vault", seen: null };
      const at = document.createElement("table");
      showVaults(at, { kv: [vault], ssm: [{ ...vault, address: "${address}" }] });
      return [...at.querySelectorAll("tbody td:first-child")].map(({ textContent }) => textContent);
    })()`;
    expect(await page.evaluate(classes("a:1"))).toEqual(["kv, ssm"]);
    expect(await page.evaluate(classes("b:1"))).toEqual(["kv", "ssm"]);
  },
  TIMEOUT_MS,
);

test(
  "the keyboard alone reaches a cause and its explanation",
  async () => {
    const { page } = await open();
    const focused = (): Promise<string> =>
      page.evaluate(`document.activeElement.closest("button, pre")?.textContent ?? ""`);
    for (let tabs = 0; tabs < 20 && !(await focused()).includes("never_stored"); tabs += 1) {
      await page.keyboard.press("Tab");
    }
    expect(await focused()).toContain("never_stored");
    await page.keyboard.press("Enter");
    await page.waitForSelector("#explained pre");
    expect(await page.textContent("#explained")).toContain("$ tierkv explain request");
    expect(await focused()).toContain("was never stored");
  },
  TIMEOUT_MS,
);

test(
  "its policy stops a script that is not its own",
  async () => {
    const { page, complaints } = await open();
    await page.evaluate(`(() => {
    const script = document.createElement("script");
    script.textContent = "window.stranger = true";
    document.body.append(script);
  })()`);
    expect(await page.evaluate("window.stranger")).toBeUndefined();
    expect(complaints.join("\n")).toContain("Content Security Policy");
  },
  TIMEOUT_MS,
);

test(
  "a sidecar that is gone is said to be",
  async () => {
    const { page, scene } = await open();
    await scene.proxy.close();
    await scene.sidecar.close();
    await page.locator("#link", { hasText: "does not answer" }).waitFor();
  },
  TIMEOUT_MS,
);
