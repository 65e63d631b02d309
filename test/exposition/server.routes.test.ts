// Owns the proof that the metrics endpoint serves one route, and reads no body of anything.
import { request } from "node:http";
import { expect, test } from "vitest";
import { startScrapeServer } from "../../src/exposition/server.ts";
import { closeAfterTest } from "../support/vaults.ts";

const BODY_BYTES = 256_000_000;
/** What the buffers of two sockets take before anybody reads. */
const UNREAD_BYTES_MAX = 64_000_000;
const METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"] as const;
const PATHS = ["/metrics", "/metrics?x=1", "/", "/metrics/", "/../metrics", "//metrics", "/debug"];

async function open(): Promise<{ port: number; reads: () => number }> {
  let reads = 0;
  const read = (): [] => {
    reads += 1;
    return [];
  };
  const listen = { host: "127.0.0.1", port: 0 };
  const server = closeAfterTest(await startScrapeServer({ listen, key: "[vault] x", read }));
  return { port: Number(new URL(server.url).port), reads: () => reads };
}

interface Answer {
  status: number;
  sent: number;
}

/** Goes on sending, whatever comes back. */
function send(port: number, method: string, path: string, bodyBytes: number): Promise<Answer> {
  return new Promise((resolve) => {
    const headers = bodyBytes > 0 ? { "content-length": bodyBytes } : {};
    const call = request({ host: "127.0.0.1", port, method, path, headers, agent: false });
    const answer: Answer = { status: 0, sent: 0 };
    call.on("response", (response) => {
      answer.status = response.statusCode ?? 0;
      response.resume();
    });
    call.on("error", () => {}).once("close", () => resolve(answer));
    const chunk = Buffer.alloc(1_000_000);
    const more = (): void => {
      if (answer.sent >= bodyBytes || call.destroyed) {
        call.end();
        return;
      }
      call.write(chunk, (error) => {
        if (error !== null && error !== undefined) return;
        answer.sent += chunk.length;
        more();
      });
    };
    more();
  });
}

test("only GET /metrics is served", async () => {
  const { port, reads } = await open();
  let served = 0;
  for (const method of METHODS) {
    for (const path of PATHS) {
      const isIt = method === "GET" && /^\/metrics(?:\?|$)/.test(path);
      const { status } = await send(port, method, path, 0);
      expect([method, path, status]).toEqual([method, path, isIt ? 200 : 404]);
      served += Number(isIt);
      expect(reads()).toBe(served);
    }
  }
});

test.each(METHODS.filter((method) => !["HEAD", "TRACE"].includes(method)))(
  "a body that comes with %s is not read",
  async (method) => {
    const { port, reads } = await open();
    const { sent } = await send(port, method, "/metrics", BODY_BYTES);
    expect(sent).toBeLessThan(UNREAD_BYTES_MAX);
    expect(reads()).toBe(0);
  },
);
