// Owns the proof that a real Envoy sends requests where the gateway says, with bodies, streams and refusals whole.
import { createHash } from "node:crypto";
import { expect, test } from "vitest";
import { envoyBefore, HAS_ENVOY, WITHOUT_ENVOY } from "../../support/envoys.ts";
import { call, complete, gatewayBefore, keyFile, until } from "../../support/gateways.ts";

const real = test.skipIf(!HAS_ENVOY);
const SKIPPED = WITHOUT_ENVOY;

const ADDRESS = { host: "127.0.0.1", port: 0, text: "127.0.0.1:0" };
const JSON_TYPE = { "content-type": "application/json" };
/** The tenant, and a digest of the client's own salt. */
const OF_ACME = expect.stringMatching(/^acme:[\w-]{43}$/) as unknown;

real(
  `requests go through Envoy to the engine of their model, streams event by event${SKIPPED}`,
  async () => {
    const scene = await gatewayBefore([["a"], ["b"]], { extProc: ADDRESS });
    const { url } = await envoyBefore(scene);
    const [, second] = scene.engines;
    second!.tokens = 50;
    const answer = await complete(url, true, "b");
    expect(answer.code).toBe(200);
    const events = answer.text.split("\n\n").filter((event) => event.includes("token"));
    expect(events).toEqual(
      events.map((_none, at) => `data: {"engine":"${second!.name}","token":${at}}`),
    );
    expect([events.length, answer.text.endsWith("data: [DONE]\n\n")]).toEqual([50, true]);
    expect(answer.headers["x-gateway-destination-endpoint-served"]).toBe(second!.name);
    expect(answer.headers["x-tierkv-preset"]).toBe("round-robin");
    await until(async () =>
      (await call(scene.url, "/metrics")).text.includes(`in_flight{engine="${second!.name}"} 0`),
    );

    // The first events are there before the engine has said the last.
    second!.tokens = 1e9;
    let asked: { destroy(): void } | null = null;
    const { isCut } = await call(url, "/v1/completions", {
      body: JSON.stringify({ model: "b", stream: true }),
      headers: JSON_TYPE,
      onRequest: (one) => (asked = one),
      onChunk: () => asked?.destroy(),
    });
    expect(isCut).toBe(true);
    await until(() => second!.aborted === 1);
  },
);

real(`bodies of 500 kB pass whole, and refusals have their status${SKIPPED}`, async () => {
  const scene = await gatewayBefore([["m"]], { extProc: ADDRESS, inFlightMax: 1, waitMs: 0 });
  const { url } = await envoyBefore(scene);
  const [engine] = scene.engines;
  const prompt = Array.from({ length: 40 }, (_none, at) =>
    createHash("sha512").update(String(at)).digest("hex").repeat(98),
  ).join(" ");
  const body = JSON.stringify({ model: "m", prompt });
  expect(body.length).toBeGreaterThan(500_000);
  const whole = await call(url, "/v1/completions", { body, headers: JSON_TYPE });
  expect(whole.code).toBe(200);
  expect(engine!.asked.at(-1)!.body === body).toBe(true);
  expect((JSON.parse(whole.text) as { echo: string }).echo === body).toBe(true);

  expect((await complete(url, false, "none")).code).toBe(404);
  expect((await call(url, "/sleep", { body: "{}", headers: JSON_TYPE })).code).toBe(404);
  let open: () => void = () => {};
  engine!.gate = new Promise((resolve) => (open = resolve));
  await until(async () =>
    (await call(scene.url, "/metrics")).text.includes(`in_flight{engine="${engine!.name}"} 0`),
  );
  const before = engine!.asked.length;
  const held = complete(url, false);
  await until(() => engine!.asked.length === before + 1);
  const shed = await complete(url, false);
  expect([shed.code, shed.headers["retry-after"]]).toEqual([429, "1"]);
  expect(JSON.parse(shed.text)).toMatchObject({ error: { code: 429 } });
  open();
  expect((await held).code).toBe(200);
  await engine!.kill();
  await until(async () => (await complete(url, false)).code === 503);
});

real(`keys and tenants hold behind Envoy, too${SKIPPED}`, async () => {
  const keys = keyFile("team secret acme");
  const scene = await gatewayBefore([["m"]], { extProc: ADDRESS, keys });
  const { url } = await envoyBefore(scene);
  expect((await complete(url, false)).code).toBe(401);
  const body = JSON.stringify({ model: "m", prompt: "p", cache_salt: "own" });
  const headers = { ...JSON_TYPE, authorization: "Bearer secret" };
  const answer = await call(url, "/v1/completions", { body, headers });
  expect(answer.code).toBe(200);
  const asked = scene.engines[0]!.asked.at(-1)!;
  expect(JSON.parse(asked.body)).toMatchObject({ prompt: "p", cache_salt: OF_ACME });
  expect(asked.headers.authorization).toBeUndefined();
});
