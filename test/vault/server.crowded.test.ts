// Owns the proof that a message of millions of empty parts is refused before anything is made of it.
import { Client, credentials, Metadata, status as GrpcStatus } from "@grpc/grpc-js";
import type { ServiceError } from "@grpc/grpc-js";
import { expect, test } from "vitest";
import { KEYS_MAX } from "../../src/limits.ts";
import { vaultService } from "../../src/wire/service.ts";
import { processorSeconds } from "../support/crowd.ts";
import { keysOf, makeRecords, NAMESPACE } from "../support/records.ts";
import { startVaultProcess } from "../support/vault-process.ts";
import type { Place } from "../support/vault-process.ts";
import { closeAfterTest, KeepingSink, openClient, SOON_MS } from "../support/vaults.ts";

const PARTS = 2_000_000;
/** Processor time, so that a busy machine changes nothing: reading the parts takes several times as much. */
const SECONDS_MAX = 1;

const repeated = (field: number, count: number): Buffer =>
  Buffer.alloc(2 * count, Buffer.from([8 * field + 2, 0]));

function within(field: number, body: Buffer): Buffer {
  const length: number[] = [];
  let rest = body.length;
  for (; rest >= 128; rest = Math.floor(rest / 128)) length.push(128 + (rest % 128));
  return Buffer.concat([Buffer.from([8 * field + 2, ...length, rest]), body]);
}

/** One call of Fetch or Store with one message of these bytes, and how it fails. */
function failureOf(vault: Place, call: "Fetch" | "Store", bytes: Buffer): Promise<ServiceError> {
  const client = closeAfterTest(new Client(vault.address, credentials.createInsecure()));
  const pass = (given: Buffer): Buffer => given;
  const { path } = vaultService[call];
  const stream = client.makeBidiStreamRequest(path, pass, pass, new Metadata());
  stream.resume();
  stream.write(bytes);
  stream.end();
  return new Promise((resolve, reject) => {
    stream.on("error", resolve).on("end", () => reject(new Error("it was served")));
  });
}

test.each<[string, "Fetch" | "Store", Buffer]>([
  ["segments of one Fetch", "Fetch", repeated(2, PARTS)],
  ["pieces of one chunk", "Store", within(2, repeated(1, PARTS))],
  ["parts of one Store message", "Store", repeated(2, PARTS)],
  ["keys or lengths of one offer", "Store", within(1, within(3, Buffer.alloc(PARTS)))],
])("F37 too many %s are refused unread, by a limit that is named", async (what, call, bytes) => {
  const vault = await startVaultProcess();
  const client = openClient(vault, "kv", { lanes: 0 });
  await client.hello(SOON_MS);
  const before = processorSeconds(vault.pid);
  const { code, details } = await failureOf(vault, call, bytes);
  expect(code).toBe(GrpcStatus.RESOURCE_EXHAUSTED);
  expect(details).toContain(what);
  expect(details).toContain(`the limit is ${KEYS_MAX}`);
  expect(processorSeconds(vault.pid) - before).toBeLessThan(SECONDS_MAX);
});

test("a fetch of as many segments as keys, and a store of as many pieces, are served", async () => {
  const vault = await startVaultProcess();
  const client = openClient(vault, "kv", { lanes: 0 });
  const records = makeRecords(KEYS_MAX, { payloadBytes: 16 });
  const statuses = await client.store(NAMESPACE, "kv", records, SOON_MS);
  expect(new Set(statuses)).toEqual(new Set([1]));
  const runs = records.map((record) => ({
    recordClass: "kv" as const,
    group: 0,
    keys: keysOf([record]),
  }));
  const sink = new KeepingSink();
  await client.fetch(NAMESPACE, runs, sink, { deadlineMs: SOON_MS });
  expect(sink.records.size).toBe(KEYS_MAX);
});
