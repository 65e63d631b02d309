// Owns the proof of the endpoint picker as Envoy speaks to it: what is answered, in which order, and what is given back.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { Client, credentials } from "@grpc/grpc-js";
import { expect, onTestFinished, test } from "vitest";
import { extProcService } from "../../../src/wire/ext-proc.ts";
import type {
  HttpHeaders,
  ProcessingRequest,
  ProcessingResponse,
} from "../../../src/wire/ext-proc.ts";
import { call, gatewayBefore, keyFile, testFolder, until } from "../../support/gateways.ts";
import type { Scene } from "../../support/gateways.ts";

const ADDRESS = { host: "127.0.0.1", port: 0, text: "127.0.0.1:0" };
const DESTINATION = "x-gateway-destination-endpoint";

interface Spoken {
  say(message: ProcessingRequest): void;
  /** Answers so far. */
  heard: ProcessingResponse[];
  end(): void;
  cancel(): void;
}

function speakTo({ extProc }: Scene): Spoken {
  const client = new Client(extProc!, credentials.createInsecure());
  const { path, requestSerialize, responseDeserialize } = extProcService.Process;
  const stream = client.makeBidiStreamRequest(path, requestSerialize, responseDeserialize);
  const heard: ProcessingResponse[] = [];
  stream.on("data", (message: ProcessingResponse) => heard.push(message)).on("error", () => {});
  onTestFinished(() => {
    stream.cancel();
    client.close();
  });
  return {
    heard,
    say: (message) => stream.write(message),
    end: () => stream.end(),
    cancel: () => stream.cancel(),
  };
}

const headers = (given: Record<string, string>): HttpHeaders => ({
  headers: {
    headers: Object.entries(given).map(([key, value]) => ({ key, rawValue: Buffer.from(value) })),
  },
});
const HEAD = headers({
  ":method": "POST",
  ":path": "/v1/completions",
  "content-type": "application/json",
});

const set = (message: ProcessingResponse | undefined): Record<string, string> => {
  const { response } = message?.requestHeaders ?? message?.responseHeaders ?? { response: {} };
  const all = response.headerMutation?.setHeaders ?? [];
  return Object.fromEntries(all.map(({ header }) => [header.key, String(header.rawValue)]));
};

const lastOf = (message?: ProcessingResponse): unknown =>
  message?.requestBody?.response.bodyMutation?.streamedResponse.endOfStream;

const inFlight = async ({ url }: Scene): Promise<number> => {
  const { text } = await call(url, "/metrics");
  return [...text.matchAll(/in_flight\{.*\} (\d+)$/gm)].reduce((sum, [, n]) => sum + Number(n), 0);
};

test("head, then the body as it came in pieces; the answer passes, and its end frees the engine", async () => {
  const scene = await gatewayBefore([["a"], ["b"]], { extProc: ADDRESS });
  const spoken = speakTo(scene);
  const body = JSON.stringify({ model: "b", prompt: "x".repeat(200_000) });
  spoken.say({ requestHeaders: HEAD });
  for (let at = 0; at < body.length; at += 50_000) {
    spoken.say({ requestBody: { body: Buffer.from(body.slice(at, at + 50_000)) } });
  }
  spoken.say({ requestBody: { endOfStream: true } });
  // Envoy ends some bodies above 1 MB twice (gateway-api-inference-extension#2988).
  spoken.say({ requestBody: { endOfStream: true } });
  await until(() => lastOf(spoken.heard.at(-1)) === true);
  const [first, ...rest] = spoken.heard;
  const { name } = scene.engines[1]!;
  expect(set(first)).toEqual({ [DESTINATION]: name });
  const inner = { fields: { [DESTINATION]: { stringValue: name } } };
  expect(first!.dynamicMetadata).toMatchObject({ fields: { "envoy.lb": { structValue: inner } } });
  const pieces = rest.map(
    (one) => one.requestBody!.response.bodyMutation!.streamedResponse.body ?? Buffer.alloc(0),
  );
  expect(Buffer.concat(pieces).toString() === body).toBe(true);
  expect(rest.slice(0, -1).some((one) => lastOf(one) === true)).toBe(false);
  expect(await inFlight(scene)).toBe(1);

  spoken.heard.length = 0;
  spoken.say({
    responseHeaders: headers({ ":status": "200", "content-type": "text/event-stream" }),
  });
  spoken.say({ responseBody: { body: Buffer.from("data: 1\n\n") } });
  spoken.say({ responseBody: { body: Buffer.from("data: 2\n\n"), endOfStream: true } });
  await until(() => spoken.heard.length === 3);
  expect(set(spoken.heard[0])).toMatchObject({ [`${DESTINATION}-served`]: name });
  expect(
    spoken.heard.slice(1).map((one) => one.responseBody!.response.bodyMutation!.streamedResponse),
  ).toMatchObject([
    { body: Buffer.from("data: 1\n\n") },
    { body: Buffer.from("data: 2\n\n"), endOfStream: true },
  ]);
  spoken.end();
  await until(async () => (await inFlight(scene)) === 0);
});

test("whole answers correct what is predicted, too", async () => {
  const scene = await gatewayBefore([["m"]], { extProc: ADDRESS, preset: "earliest-token" });
  const prompt = Array.from({ length: 64 }, (_none, at) => at);
  const body = Buffer.from(JSON.stringify({ model: "m", prompt }));
  const usage = Buffer.from('{"usage":{"total_tokens":65,"completion_tokens":1}}');
  const predicted: number[] = [];
  for (let n = 0; n < 3; n += 1) {
    const spoken = speakTo(scene);
    spoken.say({ requestHeaders: HEAD });
    spoken.say({ requestBody: { body, endOfStream: true } });
    await until(() => spoken.heard.length === 2);
    spoken.say({
      responseHeaders: headers({ ":status": "200", "content-type": "application/json" }),
    });
    await until(() => spoken.heard.length === 3);
    predicted.push(Number(set(spoken.heard[2])["x-tierkv-predicted-ttft-ms"]));
    await new Promise((resolve) => setTimeout(resolve, 200));
    spoken.say({ responseBody: { body: usage, endOfStream: true } });
    await until(() => spoken.heard.length === 4);
    spoken.end();
    await until(async () => (await inFlight(scene)) === 0);
  }
  // 64 tokens at the pace that is believed at first; the first answer says nothing of the next.
  expect(predicted[1]).toBeLessThan(10);
  expect(predicted[2]).toBeGreaterThan(150);
});

test("where all engines are full: 429 at once; a client that leaves while it waits frees its place", async () => {
  const scene = await gatewayBefore([["m"]], { extProc: ADDRESS, inFlightMax: 1, waitMs: 0 });
  const body = { body: Buffer.from('{"model":"m"}'), endOfStream: true };
  const one = speakTo(scene);
  one.say({ requestHeaders: HEAD });
  one.say({ requestBody: body });
  await until(() => one.heard.length === 2);
  const other = speakTo(scene);
  other.say({ requestHeaders: HEAD });
  other.say({ requestBody: body });
  await until(() => other.heard.length === 1);
  const refused = other.heard[0]!.immediateResponse!;
  expect(refused.status.code).toBe(429);
  expect(JSON.parse(String(refused.body))).toMatchObject({ error: { code: 429 } });
  expect(refused.headers.setHeaders!.map(({ header }) => header.key)).toContain("retry-after");
  one.cancel();
  await until(async () => (await inFlight(scene)) === 0);
});

test("a request without a body is sent somewhere, and one with trailers ends with them", async () => {
  const scene = await gatewayBefore([["m"]], { extProc: ADDRESS });
  const bare = speakTo(scene);
  bare.say({ requestHeaders: { ...HEAD, endOfStream: true } });
  await until(() => bare.heard.length === 1);
  expect(set(bare.heard[0])[DESTINATION]).toBe(scene.engines[0]!.name);
  const trailing = speakTo(scene);
  trailing.say({ requestHeaders: HEAD });
  trailing.say({ requestBody: { body: Buffer.from('{"model":"m"}') } });
  trailing.say({ requestTrailers: {} });
  await until(() => trailing.heard.length === 3);
  const { streamedResponse } = trailing.heard[1]!.requestBody!.response.bodyMutation!;
  expect(streamedResponse.endOfStream ?? false).toBe(false);
  expect(trailing.heard[2]!.requestTrailers).toBeDefined();
});

test("an empty body ends as it came, because Envoy waits for its end", async () => {
  const scene = await gatewayBefore([["m"]], { extProc: ADDRESS });
  const spoken = speakTo(scene);
  spoken.say({ requestHeaders: HEAD });
  spoken.say({ requestBody: { endOfStream: true } });
  await until(() => spoken.heard.length === 2);
  expect(lastOf(spoken.heard[1])).toBe(true);
});

test("a client without a key is refused by its head, so that none of its body is kept", async () => {
  const scene = await gatewayBefore([["m"]], { extProc: ADDRESS, keys: keyFile("ana k-ana") });
  const spoken = speakTo(scene);
  spoken.say({ requestHeaders: HEAD });
  await until(() => spoken.heard.length === 1);
  expect(spoken.heard[0]!.immediateResponse!.details).toBe("no_key");
});

test("a keyed engine gets its key in place of the client's, and the client learns no address", async () => {
  const engineKey = join(testFolder(), "engine-key");
  writeFileSync(engineKey, "of-engines\n", { mode: 0o600 });
  const scene = await gatewayBefore([["m"]], {
    extProc: ADDRESS,
    keys: keyFile("ana k-ana"),
    engineKey,
    showEngine: false,
  });
  const spoken = speakTo(scene);
  const head = { ":path": "/v1/completions", "content-type": "application/json" };
  spoken.say({ requestHeaders: headers({ ...head, "x-api-key": "k-ana" }) });
  spoken.say({ requestBody: { body: Buffer.from('{"model":"m"}'), endOfStream: true } });
  await until(() => spoken.heard.length === 2);
  const [asked] = spoken.heard;
  expect(set(asked)).toMatchObject({ authorization: "Bearer of-engines" });
  expect(asked!.requestHeaders!.response.headerMutation!.removeHeaders).toContain("x-api-key");
  spoken.say({ responseHeaders: headers({ ":status": "200" }) });
  await until(() => spoken.heard.length === 3);
  expect(Object.keys(set(spoken.heard[2]))).not.toContain(`${DESTINATION}-served`);
});

test("a body of 2 MB comes back whole, without a warning of listeners that add up", async () => {
  const warnings: string[] = [];
  const onWarning = ({ message }: Error): void => void warnings.push(message);
  process.on("warning", onWarning);
  onTestFinished(() => void process.off("warning", onWarning));
  const scene = await gatewayBefore([["m"]], { extProc: ADDRESS });
  const spoken = speakTo(scene);
  spoken.say({ requestHeaders: HEAD });
  const body = Buffer.from(JSON.stringify({ model: "m", prompt: "x".repeat(2_000_000) }));
  for (let at = 0; at < body.length; at += 50_000) {
    const piece = body.subarray(at, at + 50_000);
    spoken.say({ requestBody: { body: piece, endOfStream: at + 50_000 >= body.length } });
  }
  await until(() => lastOf(spoken.heard.at(-1)) === true);
  expect(warnings).toEqual([]);
});

test("a body nested deeply goes to an engine as it came, with its salt, and the next one is served", async () => {
  const keys = keyFile("ana k-ana acme");
  const scene = await gatewayBefore([["m"]], { extProc: ADDRESS, keys });
  const head = { ":path": "/v1/completions", "content-type": "application/json" };
  const ask = (body: string): Spoken => {
    const spoken = speakTo(scene);
    spoken.say({ requestHeaders: headers({ ...head, authorization: "Bearer k-ana" }) });
    spoken.say({ requestBody: { body: Buffer.from(body), endOfStream: true } });
    return spoken;
  };
  const deep = ask(`{"model":"m","prompt":${"[".repeat(20_000)}${"]".repeat(20_000)}}`);
  await until(() => deep.heard.length === 2);
  const mutation = deep.heard[1]!.requestBody?.response?.bodyMutation;
  const sent = String(mutation?.streamedResponse?.body ?? "");
  expect([sent.length > 40_000, sent.includes('"cache_salt":"acme"')]).toEqual([true, true]);
  const sound = ask('{"model":"m","prompt":"p"}');
  await until(() => sound.heard.length === 2);
  expect(set(sound.heard[0])[DESTINATION]).toBe(scene.engines[0]!.name);
});

test("F94 what a key may take holds here, too: 429 with the time to wait; an answer's end frees its place", async () => {
  const keys = keyFile("ana secret tokens=1000 concurrent=1");
  const scene = await gatewayBefore([["m"]], { extProc: ADDRESS, keys });
  const ask = (): Spoken => {
    const spoken = speakTo(scene);
    const own = { ":method": "POST", ":path": "/v1/completions", authorization: "Bearer secret" };
    spoken.say({ requestHeaders: headers({ ...own, "content-type": "application/json" }) });
    const body = Buffer.from('{"model":"m","max_tokens":100}');
    spoken.say({ requestBody: { body, endOfStream: true } });
    return spoken;
  };
  const first = ask();
  await until(() => first.heard.length === 2);
  const second = ask();
  await until(() => second.heard.length === 1);
  const { status, details } = second.heard[0]!.immediateResponse!;
  expect([status, details]).toEqual([{ code: 429 }, "key_concurrent"]);
  first.heard.length = 0;
  first.say({ responseHeaders: headers({ ":status": "200" }) });
  await until(() => first.heard.length === 1);
  const remaining = set(first.heard[0])["x-ratelimit-remaining-tokens"];
  expect(Number(remaining)).toBeGreaterThan(880);
  expect(Number(remaining)).toBeLessThan(900);
  const usage = Buffer.from('{"usage":{"total_tokens":3000}}');
  first.say({ responseBody: { body: usage, endOfStream: true } });
  first.end();
  await until(async () => (await inFlight(scene)) === 0);
  const third = ask();
  await until(() => third.heard.length === 1);
  const late = third.heard[0]!.immediateResponse!;
  expect(late.details).toBe("key_tokens");
  const told = late.headers.setHeaders!.map(({ header }) => [header.key, String(header.rawValue)]);
  expect(Number(new Map(told as [string, string][]).get("retry-after"))).toBeGreaterThan(100);
});
