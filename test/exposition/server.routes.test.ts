// Owns the proof that the metrics endpoint serves two routes, and reads no body of anything.
import { connect } from "node:net";
import { expect, test } from "vitest";
import { startScrapeServer } from "../../src/exposition/server.ts";
import { exposition, gauge } from "../../src/exposition/text.ts";
import { closeAfterTest } from "../support/vaults.ts";

const BODY_BYTES = 256_000_000;
/** What the buffers of two sockets take before anybody reads. */
const UNREAD_BYTES_MAX = 64_000_000;
const METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"] as const;
const PATHS = [
  "/metrics",
  "/metrics?x=1",
  "/",
  "/metrics/",
  "/../metrics",
  "//metrics",
  "/debug",
  "/healthz",
];

async function open(
  trouble: () => string | null = () => null,
): Promise<{ port: number; reads: () => number }> {
  let reads = 0;
  const read = (): Promise<string> => {
    reads += 1;
    return Promise.resolve("");
  };
  const listen = { host: "127.0.0.1", port: 0 };
  const server = closeAfterTest(
    await startScrapeServer({ listen, key: "[vault] x", read, trouble }),
  );
  return { port: Number(new URL(server.url).port), reads: () => reads };
}

interface Answer {
  status: number;
  sent: number;
}

/** Goes on sending, whatever comes back, until the connection ends. */
function send(port: number, method: string, path: string, bodyBytes: number): Promise<Answer> {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1");
    const answer: Answer = { status: 0, sent: 0 };
    socket.setEncoding("latin1").on("data", (text: string) => {
      const [, status = ""] = /^HTTP\/1\.1 (\d+)/.exec(text) ?? [];
      if (status !== "") answer.status = Number(status);
    });
    socket.on("error", () => {}).once("close", () => resolve(answer));
    const length = bodyBytes > 0 ? `Content-Length: ${bodyBytes}\r\n` : "Connection: close\r\n";
    socket.write(`${method} ${path} HTTP/1.1\r\nHost: a\r\n${length}\r\n`);
    const chunk = Buffer.alloc(1_000_000);
    const more = (): void => {
      if (socket.destroyed) return;
      if (answer.sent >= bodyBytes) {
        if (bodyBytes > 0) socket.end();
        return;
      }
      socket.write(chunk, (error) => {
        if (error !== null && error !== undefined) return;
        answer.sent += chunk.length;
        more();
      });
    };
    more();
  });
}

test("/healthz is 200 while the process does its work, and 503 with the reason while it cannot", async () => {
  let reason: string | null = null;
  const { port } = await open(() => reason);
  const ask = async (): Promise<[number, string]> => {
    const response = await fetch(`http://127.0.0.1:${port}/healthz`);
    return [response.status, await response.text()];
  };
  expect(await ask()).toEqual([200, "ok\n"]);
  reason = "the disk takes no more records";
  expect(await ask()).toEqual([503, "the disk takes no more records\n"]);
});

test("only GET /metrics and GET /healthz are served", async () => {
  const { port, reads } = await open();
  let served = 0;
  for (const method of METHODS) {
    for (const path of PATHS) {
      const isScrape = method === "GET" && /^\/metrics(?:\?|$)/.test(path);
      const isIt = isScrape || (method === "GET" && path === "/healthz");
      const { status } = await send(port, method, path, 0);
      expect([method, path, status]).toEqual([method, path, isIt ? 200 : 404]);
      served += Number(isScrape);
      expect(reads()).toBe(served);
    }
  }
});

test.each(METHODS)("a body that comes with %s is not read", async (method) => {
  const { port, reads } = await open();
  const { sent } = await send(port, method, "/metrics", BODY_BYTES);
  expect(sent).toBeLessThan(UNREAD_BYTES_MAX);
  expect(reads()).toBe(0);
});

test("families that cannot be printed get status 500, and the next scrape is served", async () => {
  let names = ["twice", "twice"];
  const listen = { host: "127.0.0.1", port: 0 };
  const read = (): Promise<string> => exposition(names.map((name) => gauge(name, "Help.", 1)));
  const server = closeAfterTest(
    await startScrapeServer({ listen, key: "[vault] x", read, trouble: () => null }),
  );
  const broken = await fetch(server.url);
  expect([broken.status, await broken.text()]).toEqual([500, expect.stringContaining("twice")]);
  names = ["once"];
  expect(await (await fetch(server.url)).text()).toContain("\nonce 1\n");
});
