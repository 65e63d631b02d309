// Owns a real browser for tests: the system's or a development package's, with the driver calls that tests use.
import { existsSync } from "node:fs";

/** Both are loaded on demand, because they are large and few tests need them. */
const DRIVER = "playwright-core";
const PACKAGE = "@sparticuz/chromium";
const SYSTEM = "/usr/bin/chromium";

/** A session of Chromium's own protocol. */
export interface Session {
  send(method: "HeapProfiler.collectGarbage"): Promise<unknown>;
  send(method: "Runtime.getHeapUsage"): Promise<{ usedSize: number }>;
  send(
    method: "Memory.getDOMCounters",
  ): Promise<{ nodes: number; jsEventListeners: number; documents: number }>;
}

export interface Page {
  on(event: "console", listener: (message: { type(): string; text(): string }) => void): void;
  on(event: "pageerror", listener: (error: Error) => void): void;
  addInitScript(script: string): Promise<void>;
  goto(url: string): Promise<unknown>;
  waitForSelector(selector: string): Promise<unknown>;
  evaluate<T>(script: string): Promise<T>;
  textContent(selector: string): Promise<string | null>;
  locator(
    selector: string,
    options?: { hasText: string },
  ): { count(): Promise<number>; waitFor(): Promise<void> };
  screenshot(options: { path: string; fullPage: boolean }): Promise<unknown>;
  keyboard: { press(key: string): Promise<void> };
  context(): { newCDPSession(page: Page): Promise<Session> };
  close(): Promise<void>;
}

export interface Browser {
  newPage(options: {
    colorScheme: "light" | "dark";
    locale: string;
    viewport: { width: number; height: number };
  }): Promise<Page>;
  close(): Promise<void>;
}

interface Driver {
  chromium: { launch(options: { executablePath: string; args: string[] }): Promise<Browser> };
}

/** Resolves to a browser, or to the reason why there is none, in one line. */
export async function launchBrowser(): Promise<Browser | string> {
  try {
    const { chromium } = (await import(DRIVER)) as Driver;
    const executablePath = existsSync(SYSTEM) ? SYSTEM : await packaged();
    return await chromium.launch({ executablePath, args: ["--no-sandbox"] });
  } catch (error) {
    return String(error).split("\n", 1)[0] ?? "";
  }
}

async function packaged(): Promise<string> {
  const found = (await import(PACKAGE)) as { default: { executablePath(): Promise<string> } };
  return await found.default.executablePath();
}
