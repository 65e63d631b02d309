// Owns the proof that token ids are read alike from the answers of engines in the clear and over TLS, and that what is no list of ids is none.
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { describe, expect, onTestFinished, test } from "vitest";
import { OPEN } from "../../../src/gateway/engines/access.ts";
import type { Calls } from "../../../src/gateway/engines/calls.ts";
import { CoreCalls } from "../../../src/gateway/engines/core-calls.ts";
import { UndiciCalls } from "../../../src/gateway/engines/undici-calls.ts";

const MOST = 4_096;
const ASKED = { method: "POST", path: "/tokenize", body: "{}" };

/** Starts an engine that answers everything so; returns its address. */
async function engineThatSays(text: string, statusCode = 200): Promise<string> {
  const server = createServer((request, response) => {
    request.resume();
    response.writeHead(statusCode, { "content-type": "application/json" }).end(text);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  onTestFinished(() => void server.close());
  return `127.0.0.1:${(server.address() as AddressInfo).port}`;
}

const CLIENTS: readonly [name: string, open: (address: string) => Calls][] = [
  ["the core", (address) => new CoreCalls(address, 4)],
  ["undici", (address) => new UndiciCalls(address, 4, OPEN)],
];

async function asked(
  open: (address: string) => Calls,
  address: string,
): Promise<[statusCode: number, ids: number[] | null]> {
  const calls = open(address);
  const { statusCode, ids } = await calls.ids(ASKED, MOST);
  await calls.close();
  if (ids !== null) expect(ids).toBeInstanceOf(Uint32Array);
  return [statusCode, ids === null ? null : [...ids]];
}

describe.each(CLIENTS)("%s", (_name, open) => {
  test.each<[string, readonly number[] | null]>([
    ['{"count":3,"max_model_len":9,"tokens":[0,5,4294967295]}', [0, 5, 4_294_967_295]],
    ['{"tokens":[7],"token_strs":["\\u00e9 ]}"]}', [7]],
    ['{"request_id":"r","token_ids":[1,2],"features":null}', [1, 2]],
    ['{"tokens":null,"token_ids":[1,2]}', [1, 2]],
    // Pictures tell blocks apart in a way that is not known here.
    ['{"token_ids":[1,2],"features":{"mm_hashes":{"image":["a"]}}}', null],
    ['{"tokens":[]}', null],
    ['{"tokens":[1,-1]}', null],
    ['{"tokens":[1.5]}', null],
    ['{"tokens":["1"]}', null],
    ['[{"token_ids":[1]}]', null],
    ["[[1],null,null]", null],
    ["no JSON", null],
    ["", null],
  ])("%s", async (text, expected) => {
    expect(await asked(open, await engineThatSays(text))).toEqual([200, expected]);
  });

  test("an answer of an error has its status", async () => {
    expect(await asked(open, await engineThatSays('{"detail":"no"}', 404))).toEqual([404, null]);
  });

  test("an answer that is too long has no ids", async () => {
    const text = JSON.stringify({ tokens: Array.from({ length: MOST }, () => 1) });
    expect((await asked(open, await engineThatSays(text)))[1]).toBeNull();
  });
});
