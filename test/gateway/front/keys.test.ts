// Owns the proof that only keys of the file open the gateway, and that a tenant's prompts carry its salt and nobody else's.
import { createHash } from "node:crypto";
import { expect, test } from "vitest";
import { Keys } from "../../../src/gateway/front/keys.ts";
import { call, gatewayBefore, keyFile } from "../../support/gateways.ts";
import type { Answer, Scene } from "../../support/gateways.ts";

const digest = (key: string): string => createHash("sha256").update(key).digest("hex");

async function guarded(): Promise<
  Scene & { ask(key: string | null, body: string): Promise<Answer> }
> {
  const keys = keyFile("# who may", "ops k-ops", "ana k-ana acme", "");
  const scene = await gatewayBefore([["m"]], { keys });
  const ask = (key: string | null, body: string): Promise<Answer> => {
    const own = key === null ? {} : { authorization: `Bearer ${key}` };
    const headers = { "content-type": "application/json", ...own };
    return call(scene.url, "/v1/completions", { body, headers });
  };
  return { ...scene, ask };
}

test("without a key of the file nothing is answered but /health", async () => {
  const { engines, url, ask } = await guarded();
  for (const key of [null, "k-other", digest("k-ops"), ""]) {
    const { code, headers, text } = await ask(key, '{"model":"m"}');
    expect([code, headers["www-authenticate"]]).toEqual([401, "Bearer"]);
    expect(JSON.parse(text)).toMatchObject({ error: { type: "AuthenticationError" } });
  }
  for (const path of ["/metrics", "/v1/models", "/nothing"]) {
    expect((await call(url, path)).code, path).toBe(401);
  }
  expect((await call(url, "/health")).code).toBe(200);
  expect(engines[0]!.asked).toHaveLength(0);
});

/** A client's own salt, as it goes to engines. */
const hashed = (salt: string): string => createHash("sha256").update(salt).digest("base64url");

test("a key opens it, and stays here; a body without tenant and salt passes byte for byte", async () => {
  const { engines, ask } = await guarded();
  const body = '{ "model":"m", "seed":12345678901234567890 }';
  expect((await ask("k-ops", body)).code).toBe(200);
  const [asked] = engines[0]!.asked;
  expect(asked?.body).toBe(body);
  expect(asked?.headers.authorization).toBeUndefined();
});

test.each([
  ['{"model":"m","prompt":"p"}', "acme"],
  ['{"model":"m","cache_salt":"other"}', `acme:${hashed("other")}`],
  ['{"model":"m","cache_salt":"a","cache_salt":"b"}', `acme:${hashed("b")}`],
  ['{"model":"m","cache_salt":7}', "acme"],
])("a tenant's request %s carries the salt %s", async (body, salt) => {
  const { engines, ask } = await guarded();
  expect((await ask("k-ana", body)).code).toBe(200);
  const sent = engines[0]!.asked[0]?.body ?? "";
  expect(JSON.parse(sent)).toMatchObject({ model: "m", cache_salt: salt });
  expect(sent.split("cache_salt")).toHaveLength(2);
});

test.each([
  '{"model":"m","tools":[{"x":1.0,"y":1e400,"z":12345678901234567890}]}',
  '{ "model" : "m" , "cache_salt":"o}{", "a":{"cache_salt":"inner"},\n"b":["cache_salt"] }',
  '{"cache_salt":"o","model":"m","t":"\\"cache_salt\\":\\"no\\""}',
  '{"model":"m","cache_s\\u0061lt":"o","é":"ü"}',
])("of a tenant's request %s all but the salt keeps its bytes", async (body) => {
  const { engines, ask } = await guarded();
  expect((await ask("k-ana", body)).code).toBe(200);
  const sent = engines[0]!.asked[0]?.body ?? "";
  const salt = (JSON.parse(sent) as { cache_salt: string }).cache_salt;
  expect(salt).toMatch(/^acme(?::[\w-]{43})?$/);
  const own = /"cache_s(?:a|\\u0061)lt" ?: ?"o(?:\}\{)?" ?,? ?/;
  const kept = (text: string): string => text.replace(/[\s,{}]/g, "");
  expect(kept(sent.replace(`"cache_salt":"${salt}"`, ""))).toBe(kept(body.replace(own, "")));
});

test("a salt of the greatest length that engines take stays within it", async () => {
  const { engines, ask } = await guarded();
  await ask("k-ana", JSON.stringify({ model: "m", cache_salt: "s".repeat(128) }));
  const sent = JSON.parse(engines[0]!.asked[0]!.body) as { cache_salt: string };
  expect(sent.cache_salt.length).toBeLessThanOrEqual(128);
});

test("a key without a tenant reaches no tenant's blocks by its salt", async () => {
  const { engines, ask } = await guarded();
  for (const salt of ["acme", "acme:other"]) {
    await ask("k-ops", JSON.stringify({ model: "m", cache_salt: salt }));
    const sent = JSON.parse(engines[0]!.asked.at(-1)!.body) as { cache_salt: string };
    expect(sent.cache_salt).toBe(`:${hashed(salt)}`);
  }
  // No JSON, which Python would read all the same.
  expect((await ask("k-ops", '{"model":"m","cache_salt":"acme","top_p":NaN}')).code).toBe(400);
  expect(engines[0]!.asked).toHaveLength(2);
});

test("a tenant's prompts go nowhere where engines take no salt, and no key loads adapters", async () => {
  const { engines, url } = await guarded();
  const codeOf = async (key: string, path: string): Promise<number> => {
    const headers = { "content-type": "application/json", authorization: `Bearer ${key}` };
    return (await call(url, path, { body: '{"model":"m"}', headers })).code;
  };
  for (const path of ["/v2/embed", "/v2/%65mbed", "/v2/embed?x", "/v2/%"]) {
    expect(await codeOf("k-ana", path), path).toBe(404);
  }
  for (const path of ["load_lora_adapter", "%6Coad_lora_adapter", "unload_lora_adapter"]) {
    expect(await codeOf("k-ops", `/v1/${path}`), path).toBe(404);
  }
  expect(engines[0]!.asked).toHaveLength(0);
  expect(await codeOf("k-ops", "/v2/embed")).toBe(200);
  expect(await codeOf("k-ana", "/v2/rerank")).toBe(200);
});

test("a tenant's body that can carry no salt is refused", async () => {
  const { engines, ask } = await guarded();
  for (const body of ["[1]", "no json", '"text"']) {
    expect((await ask("k-ana", body)).code, body).toBe(400);
  }
  expect(engines[0]!.asked).toHaveLength(0);
});

test.each([
  ["no digest", "ops k-ops", "f:1: the second word is no SHA-256"],
  ["a fourth word", `ops ${digest("a")} t more`, "f:1: a name or tenant"],
  ["a tenant with a colon", `ops ${digest("a")} t:u`, "f:1: a name or tenant"],
  ["a key twice", `a ${digest("a")}\nb ${digest("a")}`, "f:2: this key stands there twice"],
  ["no key", "# nobody yet\n", "nobody could come in"],
  ["limits alone", "* requests=5\n", "nobody could come in"],
])("a file with %s is refused", (_name, text, says) => {
  expect(() => new Keys(text, "f")).toThrow(says);
});
