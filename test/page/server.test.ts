// Owns the proof of who may look at the page, what a browser is allowed to do with it, and that what is wrong is shown.
import { writeFileSync } from "node:fs";
import { request } from "node:http";
import { join } from "node:path";
import { expect, test } from "vitest";
import { PAGE_VIEWERS_MAX } from "../../src/base/limits/seen.ts";
import { checkConfig } from "../../src/config/check.ts";
import type { Config } from "../../src/config/config.ts";
import { servePage, startOwnPage } from "../../src/page/process/serve.ts";
import { openRestored } from "../support/pages.ts";
import { testConfig, testDirectory } from "../support/sidecars.ts";
import { closeAfterTest, logger } from "../support/vaults.ts";

const LISTEN = { host: "127.0.0.1", port: 0, text: "127.0.0.1:0" };
const TOKEN = "a-token-nobody-guesses";

function configWith(sidecar: Partial<Config["sidecar"]>, socket = "/nonexistent"): Config {
  const config = testConfig({ socket });
  return { ...config, sidecar: { ...config.sidecar, pageListen: LISTEN, ...sidecar } };
}

/** The page of a process with a sidecar. */
async function openPage(sidecar: Partial<Config["sidecar"]> = {}): Promise<string> {
  const scene = await openRestored();
  const page = await startOwnPage(configWith(sidecar), logger, () => scene.sidecar);
  closeAfterTest(page!);
  return (page as unknown as { url: string }).url;
}

/** The events of a page, one after another, until what is looked for has come. */
async function hear(url: string, name: string): Promise<Record<string, never>> {
  const response = await fetch(`${url}events`);
  let text = "";
  for await (const part of response.body!) {
    text += Buffer.from(part as Uint8Array).toString();
    const found = new RegExp(`event: ${name}\ndata: (.*)\n\n`).exec(text);
    if (found === null) continue;
    return JSON.parse(found[1]!) as Record<string, never>;
  }
  throw new Error(`no ${name} in ${text}`);
}

/** Of a request under a name of its own. */
function statusFor(url: string, headers: Record<string, string>, method = "GET"): Promise<number> {
  return new Promise((resolve, reject) => {
    request(url, { headers, method }, (response) => {
      response.resume();
      resolve(response.statusCode!);
    })
      .on("error", reject)
      .end();
  });
}

test("the page is its own files under a strict policy, and nothing else", async () => {
  const url = await openPage();
  const response = await fetch(url);
  expect(response.headers.get("content-security-policy")).toMatch(/^default-src 'none';/);
  const text = await response.text();
  const links = [...text.matchAll(/(?:src|href)="([^"#]+)"/g)].map(([, path]) => path!);
  expect(links.length).toBeGreaterThan(3);
  for (const path of links) expect((await fetch(url + path)).status).toBe(200);
  expect(text).not.toMatch(/<script>|<style|style=|onclick/);
  for (const path of ["../package.json", "page/../../package.json", "server.ts", "metrics"]) {
    expect((await fetch(url + path)).status).toBe(404);
  }
  expect((await fetch(url, { method: "POST", body: "x" })).status).toBe(405);
});

test("events tell the account and what is wrong, requests say what `tierkv explain` does", async () => {
  const url = await openPage();
  const view = await hear(url, "view");
  expect(view).toMatchObject({ findings: [], status: { ledger: { restores: 1, tokens: 320 } } });
  const requests = (await (await fetch(`${url}requests`)).json()) as {
    miss: string | null;
    lines: string[];
  }[];
  expect(requests.at(-1)).toMatchObject({ miss: "never_stored" });
  expect(requests.at(-1)!.lines.join("\n")).toContain("was never stored");
});

test("a page beyond the limit is told so", async () => {
  const url = await openPage();
  const stop = new AbortController();
  for (let open = 0; open < PAGE_VIEWERS_MAX; open += 1) {
    expect((await fetch(`${url}events`, { signal: stop.signal })).status).toBe(200);
  }
  expect(await hear(url, "trouble")).toEqual({ text: "too many pages are open" });
  stop.abort();
});

test("another name for the loopback is not answered, because a page of a stranger could use one", async () => {
  const url = await openPage();
  expect(await statusFor(url, { host: "evil.example" })).toBe(421);
  expect(await statusFor(url, { host: "localhost:1" })).toBe(200);
  expect(await statusFor(url, { host: "[::1]:1" })).toBe(200);
});

test("with a token nobody looks without", async () => {
  const path = join(testDirectory(), "token");
  writeFileSync(path, `${TOKEN}\n`, { mode: 0o600 });
  const url = await openPage({ pageToken: path });
  const basic = (text: string): string => `Basic ${Buffer.from(text).toString("base64")}`;
  for (const authorization of ["", `Bearer ${TOKEN}x`, basic("me:"), basic(TOKEN), "Basic !"]) {
    for (const name of ["", "events", "requests", "page.js"]) {
      expect((await fetch(url + name, { headers: { authorization } })).status).toBe(401);
    }
  }
  for (const authorization of [`Bearer ${TOKEN}`, basic(`anybody:${TOKEN}`)]) {
    expect((await fetch(url, { headers: { authorization } })).status).toBe(200);
  }
});

test("a token that can be guessed is refused", async () => {
  const path = join(testDirectory(), "token");
  writeFileSync(path, "short\n", { mode: 0o600 });
  const page = startOwnPage(configWith({ pageToken: path }), logger, () => null);
  await expect(page).rejects.toMatchObject({ code: "CREDENTIALS" });
});

test("`top --web` shows a sidecar over its socket, says when there is none, and serves no other machine", async () => {
  const scene = await openRestored();
  const page = closeAfterTest(await servePage(configWith({}, scene.sidecar.socketPath), undefined));
  expect(await hear(page.url, "view")).toMatchObject({ status: { ledger: { restores: 1 } } });
  const alone = closeAfterTest(await servePage(configWith({}), undefined));
  expect(await hear(alone.url, "trouble")).toMatchObject({
    text: expect.stringContaining("tierkv sidecar") as string,
  });
  await expect(servePage(configWith({}), "0.0.0.0:1")).rejects.toMatchObject({
    code: "CONFIG_BAD_VALUE",
  });
});

test.each([
  ['page_listen = "0.0.0.0:1"', "page_listen"],
  ['page_listen = "0.0.0.0:1"\npage_token = "/t"', "page_listen"],
  ['page_listen = "127.0.0.1:1"\npage_tls_cert = "/c"', "page_tls_cert"],
  ['page_listen = "0.0.0.0:1"\npage_token = "/t"\npage_tls_cert = "/c"\npage_tls_key = "/k"', ""],
  ['page_listen = "127.0.0.1:1"', ""],
])("%j is a conflict of %j", (lines, key) => {
  const { problems } = checkConfig(`[sidecar]\n${lines}\n`, null, {});
  expect(problems.map(({ message }) => message).join("\n")).toContain(key);
  expect(problems).toHaveLength(key === "" ? 0 : 1);
});
