// Owns the proof that a gateway which ends is left before it refuses, finishes what is open, and logs the answers that it cuts.
import { pino } from "pino";
import { expect, test } from "vitest";
import { addressOf, call, complete, gatewayBefore, until } from "../../support/gateways.ts";
import type { Scene } from "../../support/gateways.ts";

const ANY = addressOf("127.0.0.1:0");
/** Long against a request, however busy the machine is. */
const LEAVE_MS = 8_000;

interface Line {
  msg: string;
  [field: string]: unknown;
}

/** A scene, and what its gateway logs. */
async function logged(given: Parameters<typeof gatewayBefore>[1]): Promise<[Scene, Line[]]> {
  const lines: Line[] = [];
  const write = (line: string): void => void lines.push(JSON.parse(line) as Line);
  const logger = pino({ level: "info" }, { write });
  const scene = await gatewayBefore([["m"]], given, [], [], () => [], null, logger);
  return [scene, lines];
}

test("while it leaves, /health says so and requests are answered; then nothing listens", async () => {
  const [scene, lines] = await logged({ leaveMs: LEAVE_MS, metricsListen: ANY });
  const { url } = scene;
  const found = lines.find(({ msg }) => msg === "metrics can be scraped")!;
  const metrics = new URL(String(found["url"])).origin;
  const healthy = await call(metrics, "/healthz");
  expect([healthy.code, (await call(url, "/health")).code]).toEqual([200, 200]);
  const ended = scene.close();
  expect((await call(url, "/health")).code).toBe(503);
  const said = await call(metrics, "/healthz");
  expect([said.code, said.text]).toEqual([503, "the gateway is leaving\n"]);
  const answer = await complete(url, false);
  expect([answer.code, answer.headers.connection]).toEqual([200, "close"]);
  await ended;
  await expect(complete(url, false)).rejects.toThrow("ECONNREFUSED");
  expect(lines.map(({ msg }) => msg)).not.toContain("open answers were cut");
});

test("an answer within drain_ms is whole", async () => {
  const [scene, lines] = await logged({});
  const [engine] = scene.engines;
  let open: () => void = () => {};
  engine!.gate = new Promise((resolve) => (open = resolve));
  const asked = complete(scene.url, true);
  await until(() => engine!.asked.some(({ path }) => path === "/v1/completions"));
  const ended = scene.close();
  await until(
    async () =>
      await call(scene.url, "/health").then(
        () => false,
        () => true,
      ),
  );
  open();
  const answer = await asked;
  expect([answer.code, answer.isCut]).toEqual([200, false]);
  await ended;
  expect(lines.map(({ msg }) => msg)).not.toContain("open answers were cut");
});

test("answers that take longer are cut, and the log names them", async () => {
  const [scene, lines] = await logged({ drainMs: 50 });
  const [engine] = scene.engines;
  engine!.tokens = 1e9;
  let isBegun = false;
  const asked = call(scene.url, "/v1/completions", {
    body: JSON.stringify({ model: "m", prompt: "p", stream: true }),
    headers: { "content-type": "application/json", "x-request-id": "long-one" },
    onChunk: () => (isBegun = true),
  });
  await until(() => isBegun);
  await scene.close();
  expect((await asked).isCut).toBe(true);
  expect(lines.find(({ msg }) => msg === "open answers were cut")).toMatchObject({
    count: 1,
    drainMs: 50,
    answers: [{ path: "/v1/completions", id: "long-one" }],
  });
});

test("metrics have a place of their own, which needs no key", async () => {
  const [scene, lines] = await logged({ metricsListen: ANY });
  const { url } = lines.find(({ msg }) => msg === "metrics can be scraped")!;
  await complete(scene.url, false);
  const { code, text } = await call(new URL(String(url)).origin, "/metrics");
  expect([code, text]).toEqual([200, expect.stringContaining("tierkv_gateway_requests_total")]);
  const [engine] = scene.engines;
  await engine!.kill();
  const health = (): Promise<string> =>
    call(new URL(String(url)).origin, "/healthz").then((answer) => answer.text);
  await until(async () => (await health()) === "no engine answers\n");
});
