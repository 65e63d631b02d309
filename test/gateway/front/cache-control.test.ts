// Owns the proof that prompts which a client marks with `cache_control` are kept in vaults, by the conversation and for the time it says.
import Anthropic from "@anthropic-ai/sdk";
import { expect, onTestFinished, test } from "vitest";
import { DEFAULT_SEED, rootOf } from "../../../src/gateway/hashes/forms.ts";
import { call, gatewayBefore, keyFile, until } from "../../support/gateways.ts";
import type { Scene } from "../../support/gateways.ts";
import { SimPublisher } from "../../support/sim-publisher.ts";

const BASE = { algorithm: "sha256", root: rootOf("sha256", DEFAULT_SEED) } as const;
const MARK = { type: "ephemeral" };
const HOUR = { type: "ephemeral", ttl: "1h" };
const TEXT = "hello";

const block = (text: string, mark?: object): object => ({
  type: "text",
  text,
  ...(mark === undefined ? {} : { cache_control: mark }),
});

interface Kept {
  session?: string;
  keep_s?: number;
}

interface Asking extends Scene {
  /** Sends a body as it is, and returns what the engine got. */
  send(body: string, path?: string): Promise<string>;
  /** What the shim is told for a request of these fields; null: nothing. */
  told(fields: object, path?: string): Promise<Kept | null>;
}

/** A gateway before an engine that names a vault, or does not. */
async function before(hasVault = true, keys: string | null = null): Promise<Asking> {
  const publisher = await new SimPublisher({ blockSize: 16, base: BASE }).start();
  onTestFinished(() => publisher.stop());
  const scene = await gatewayBefore([["m"]], { keys }, [publisher]);
  const [engine] = scene.engines;
  const send = async (body: string, path = "/v1/messages"): Promise<string> => {
    const headers = { "content-type": "application/json", "x-api-key": "secret" };
    expect((await call(scene.url, path, { body, headers })).code).toBe(200);
    return engine!.asked.at(-1)!.body;
  };
  const told = async (fields: object, path?: string): Promise<Kept | null> => {
    const body = JSON.stringify({ model: "m", ...fields });
    const { kv_transfer_params: params } = JSON.parse(await send(body, path)) as {
      kv_transfer_params?: { tierkv?: Kept };
    };
    return params?.tierkv ?? null;
  };
  const figures = async (): Promise<string> =>
    (await call(scene.url, "/metrics", { headers: { "x-api-key": "secret" } })).text;
  await until(async () => (await figures()).includes("events_live{"));
  const marked = { messages: [{ role: "user", content: [block(TEXT, MARK)] }] };
  await until(async () => {
    // A subscription takes effect a little after it was made.
    await (hasVault ? publisher.name(Buffer.alloc(32, 1)) : publisher.publish([]));
    const isLive = /events_live\{.*\} 1$/m.test(await figures());
    return isLive && (!hasVault || (await told(marked)) !== null);
  });
  return { ...scene, send, told };
}

const user = (...content: object[]): object => ({ role: "user", content });

test("each place of a mark counts, and the longest time", async () => {
  const { told } = await before();
  const plain = [user(block(TEXT))];
  const times: readonly [fields: object, keepS: number | undefined, path?: string][] = [
    [{ messages: plain }, undefined],
    [{ messages: [{ role: "user", content: TEXT }] }, undefined],
    [{ messages: plain, cache_control: MARK }, 300],
    [{ messages: plain, system: [block(TEXT, HOUR)] }, 3600],
    [{ messages: plain, tools: [{ name: "f", input_schema: {}, cache_control: MARK }] }, 300],
    [{ messages: [user(block(TEXT, MARK), block(TEXT, HOUR))] }, 3600],
    [{ messages: [user({ type: "tool_result", content: [block(TEXT, MARK)] })] }, 300],
    [{ messages: [user(block(TEXT, { type: "ephemeral", ttl: "9d" }))] }, undefined],
    [{ messages: [user(block(TEXT, { type: "other" }))] }, undefined],
    // Text that only looks like a mark.
    [{ messages: [user(block('{"cache_control":{"type":"ephemeral"}}'))] }, undefined],
    [{ messages: [user(block(TEXT, MARK))] }, 300, "/v1/chat/completions"],
    [{ messages: [{ role: "user", content: TEXT, cache_control: MARK }] }, 300, "/invocations"],
    [{ input: [user(block(TEXT, MARK))] }, undefined, "/v1/responses"],
  ];
  for (const [fields, keepS, path] of times)
    expect((await told(fields, path))?.keep_s, JSON.stringify(fields)).toBe(keepS);
});

test("the turns of a conversation are one session, whatever they mark; another conversation is not", async () => {
  const { told } = await before();
  const system = [block("a system's text")];
  const first = await told({ system, messages: [user(block("one", MARK))] });
  const turns = [user(block("one")), { role: "assistant", content: [block("two")] }];
  const second = await told({ system, messages: [...turns, user(block("three", MARK))] });
  expect(first?.session).toMatch(/^cache-[0-9a-f]{32}$/);
  expect(second).toEqual(first);
  const other = await told({ system, messages: [user(block("another", MARK))] });
  expect(other?.session).not.toBe(first?.session);
});

test("no other byte of the request changes, with a tenant's salt, too", async () => {
  const inner =
    '"temperature": 1.0,\n"messages":[{"role":"user","content":[{"type":"text","text":"\\u00e4","cache_control":{"type":"ephemeral"}}]}]}';
  const { send } = await before();
  expect(await send(`{${inner}`)).toMatch(
    new RegExp(`^\\{"kv_transfer_params":\\{"tierkv":\\{[^}]*\\}\\},${escaped(inner)}$`),
  );
  const salted = await before(true, keyFile("ana secret acme"));
  expect(await salted.send(`{${inner}`)).toMatch(
    new RegExp(
      `^\\{"kv_transfer_params":\\{"tierkv":\\{[^}]*\\}\\},"cache_salt":"acme",${escaped(inner)}$`,
    ),
  );
});

const escaped = (text: string): string => text.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&");

test("what a client tells the shim itself stays, and its other parameters do", async () => {
  const { told, send } = await before();
  const messages = [user(block(TEXT, MARK))];
  const own = { session: "mine", keep_s: 5 };
  expect(await told({ messages, kv_transfer_params: { tierkv: own } })).toEqual(own);
  const params = { max_load_tokens: 7 };
  const sent = await send(JSON.stringify({ model: "m", messages, kv_transfer_params: params }));
  expect(JSON.parse(sent)).toMatchObject({
    kv_transfer_params: { ...params, tierkv: { report: false, keep_s: 300 } },
  });
  const named = await told({ messages, session_id: "chat" }, "/v1/chat/completions");
  expect(named).toEqual({ report: false, keep_s: 300 });
});

test("the anthropic SDK's own marks count", async () => {
  const { url, engines } = await before();
  const client = new Anthropic({ baseURL: url, apiKey: "any", maxRetries: 0 });
  await client.messages.create({
    model: "m",
    max_tokens: 5,
    system: [{ type: "text", text: TEXT, cache_control: { type: "ephemeral", ttl: "1h" } }],
    messages: [{ role: "user", content: TEXT }],
  });
  expect(JSON.parse(engines[0]!.asked.at(-1)!.body)).toMatchObject({
    kv_transfer_params: { tierkv: { keep_s: 3600 } },
  });
});

test("before engines without a vault a marked request stays as it is", async () => {
  const { send } = await before(false);
  const body = JSON.stringify({ model: "m", messages: [user(block(TEXT, MARK))] });
  expect(await send(body)).toBe(body);
});
