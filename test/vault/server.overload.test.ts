// Owns the proof that a crowd at a real vault's ports costs it neither memory nor its clients.
// @module-tag alone
import { Client, credentials, Metadata } from "@grpc/grpc-js";
import type { ServiceError } from "@grpc/grpc-js";
import { expect, test } from "vitest";
import { ItemStatus } from "../../src/base/block.ts";
import { KEYS_MAX, VAULT_PEER_WAITING_MAX } from "../../src/base/limits/general.ts";
import {
  CALL_HEADERS,
  Crowd,
  ELSEWHERE,
  END_HEADERS,
  frame,
  header,
  PREFACE,
  processorSeconds,
  residentBytes,
} from "../support/crowd.ts";
import type { Manner } from "../support/crowd.ts";
import type { TestClient } from "../support/record-client.ts";
import { keysOf, makeRecords, NAMESPACE } from "../support/records.ts";
import { startVaultProcess, VAULT_BYTES } from "../support/vault-process.ts";
import type { Place } from "../support/vault-process.ts";
import { closeAfterTest, MIB, openClient, SOON_MS, until } from "../support/vaults.ts";

/** Connections, from TIERKV_TEST_CONNECTIONS; ten thousand in a long run (goal G16). */
const CONNECTIONS = Number(process.env["TIERKV_TEST_CONNECTIONS"] ?? 1_000);
/** Visits of the client that was there before the crowd. */
const VISITS = 50;
/** Memory allowed above the limit for records: a tenth of it, and 64 MiB. */
const SLACK_BYTES = VAULT_BYTES / 10 + 64 * MIB;
const TEST_MS_MAX = 240_000;

const RECORDS = makeRecords(8, { payloadBytes: MIB / 4 });

/** Looks all records up and fetches them; each must be right. */
async function visit(client: TestClient): Promise<void> {
  expect([...(await client.lookup(NAMESPACE, keysOf(RECORDS), SOON_MS))]).toEqual([0xff]);
  const { records } = await client.take(NAMESPACE, keysOf(RECORDS), SOON_MS);
  for (const [index, { record }] of RECORDS.entries()) {
    expect(records.get(index)?.equals(record)).toBe(true);
  }
}

async function timed(work: () => Promise<unknown>): Promise<number> {
  const begunMs = performance.now();
  await work();
  return performance.now() - begunMs;
}

const p99 = (times: number[]): number =>
  Math.round(times.sort((a, b) => a - b)[Math.floor(times.length * 0.99)] ?? 0);

/** Returns a client that has stored the records, and the vault's memory then. */
async function settle(vault: Place): Promise<{ client: TestClient; before: number }> {
  const client = openClient(vault);
  const statuses = await client.put(NAMESPACE, RECORDS, SOON_MS);
  expect(statuses).toEqual(RECORDS.map(() => ItemStatus.ACCEPTED));
  for (let round = 0; round < 10; round += 1) await visit(client);
  return { client, before: residentBytes(vault.pid) };
}

const chunk = Buffer.alloc(64 * 1024);
const MANNERS: readonly Manner[] = [
  {},
  { pace: "slow", next: () => Buffer.from("P") },
  { first: PREFACE },
  { first: PREFACE, next: () => frame("data", 0, 1, chunk, 0xff_ff_ff) },
  {
    first: Buffer.concat([PREFACE, frame("headers", END_HEADERS, 1, CALL_HEADERS)]),
    next: () => chunk,
  },
];

const mannerOf = (index: number): Manner => MANNERS[index % MANNERS.length]!;

test(
  "F36 a crowd of connections, silent, slow and without measure, ends soon; memory and other clients stay as they were",
  async () => {
    const vault = await startVaultProcess();
    const { client, before } = await settle(vault);
    const alone: number[] = [];
    const beside: number[] = [];
    for (let visits = 0; visits < VISITS; visits += 1) {
      alone.push(await timed(() => visit(client)));
    }
    const crowd = new Crowd();
    const { host, port } = vault;
    for (let index = 0; index < CONNECTIONS; index += 1) {
      crowd.add({ host, port, localAddress: ELSEWHERE }, mannerOf(index));
    }
    let most = 0;
    const isOver = async (): Promise<boolean> => {
      beside.push(await timed(() => visit(client)));
      most = Math.max(most, residentBytes(vault.pid));
      return crowd.closed === CONNECTIONS;
    };
    // The crowd gets half of the places, so that a new client is served.
    await until(() => crowd.closed > 0, "the first to be turned away");
    await visit(openClient(vault));
    await until(isOver, "the crowd to be gone");
    const grownMib = Math.round((most - before) / MIB);
    const times = { p99Ms: p99(alone), p99BesideMs: p99(beside) };
    const told = { connections: CONNECTIONS, grownMib, ...times, visits: beside.length };
    process.stdout.write(`crowd at a vault ${JSON.stringify(told)}\n`);
    expect(most - before).toBeLessThan(SLACK_BYTES);
    expect(client.state).toBe("up");
  },
  TEST_MS_MAX,
);

test("F36 one address has half of the places at most", async () => {
  const vault = await startVaultProcess();
  const crowd = new Crowd();
  const more = 20;
  for (let index = 0; index < VAULT_PEER_WAITING_MAX + more; index += 1) {
    crowd.add({ host: vault.host, port: vault.port, localAddress: ELSEWHERE }, { first: PREFACE });
  }
  await until(() => crowd.closed >= more, "those beyond the half to be cut");
  await openClient(vault).hello(SOON_MS);
  await until(() => crowd.closed === crowd.size, "those that never call to be cut, too");
});

const serialize = (body: Buffer): Buffer => body;

function call(vault: Place, path: string, body: Buffer, metadata: Metadata): Promise<ServiceError> {
  const options = { "grpc.max_send_message_length": -1 };
  const raw = closeAfterTest(new Client(vault.address, credentials.createInsecure(), options));
  return new Promise((resolve, reject) => {
    raw.makeUnaryRequest(path, serialize, serialize, body, metadata, (error) => {
      if (error === null) reject(new Error("it was answered"));
      else resolve(error);
    });
  });
}

test(
  "F37 huge requests, batches of millions of keys and giant metadata are refused by a limit that is named, and cost no memory",
  async () => {
    const vault = await startVaultProcess();
    const { client, before } = await settle(vault);
    const lookup = "/tierkv.v1.Vault/Lookup";
    const huge = await call(vault, lookup, Buffer.alloc(256 * MIB), new Metadata());
    expect(huge.details).toMatch(/larger than max \(\d+ vs 4194304\)/);
    const metadata = new Metadata();
    metadata.set("x-much", "x".repeat(MIB));
    await expect(call(vault, lookup, Buffer.alloc(0), metadata)).resolves.toMatchObject({
      code: expect.any(Number) as number,
    });
    const keys = Buffer.alloc((KEYS_MAX + 1) * 36);
    const many = client.durable(NAMESPACE, keys, SOON_MS);
    await expect(many).rejects.toThrow(`${KEYS_MAX}`);
    const crowd = new Crowd();
    // Announces 3 MiB, and sends them.
    const length = Buffer.from([0, 0, 0x30, 0, 0]);
    const first = Buffer.concat([
      PREFACE,
      frame("headers", END_HEADERS, 1, CALL_HEADERS),
      frame("data", 0, 1, length),
    ]);
    const to = { host: vault.host, port: vault.port, localAddress: ELSEWHERE };
    for (let index = 0; index < 100; index += 1) crowd.add(to, { first });
    await until(() => crowd.closed === 100, "those that never say what they announce to be cut");
    await visit(client);
    expect(residentBytes(vault.pid) - before).toBeLessThan(SLACK_BYTES);
  },
  TEST_MS_MAX,
);

const repeat = (count: number, one: Buffer): Buffer => Buffer.concat(Array(count).fill(one));

/** Cheap frames that cost the vault more than their sender. */
const FLOODS: Readonly<Record<string, () => Manner>> = {
  "rapid reset": () => {
    let stream = -1;
    const reset = (): Buffer => {
      stream += 2;
      const cancel = frame("reset", 0, stream, Buffer.from([0, 0, 0, 8]));
      return Buffer.concat([frame("headers", END_HEADERS, stream, CALL_HEADERS), cancel]);
    };
    return { next: () => Buffer.concat(Array.from({ length: 500 }, reset)) };
  },
  "endless CONTINUATION": () => {
    const more = frame("continuation", 0, 1, header("a", "b".repeat(100)));
    const first = Buffer.concat([PREFACE, frame("headers", 0, 1, CALL_HEADERS)]);
    return { first, next: () => repeat(100, more) };
  },
  ping: () => ({ next: () => repeat(1000, frame("ping", 0, 0, Buffer.alloc(8))) }),
  settings: () => ({ next: () => repeat(1000, frame("settings", 0, 0)) }),
  priority: () => ({
    next: () => repeat(1000, frame("priority", 0, 1, Buffer.from([0, 0, 0, 0, 1]))),
  }),
  "window update": () => ({
    next: () => repeat(1000, frame("window", 0, 0, Buffer.from([0, 0, 0, 1]))),
  }),
  "empty DATA": () => {
    const first = Buffer.concat([PREFACE, frame("headers", END_HEADERS, 1, CALL_HEADERS)]);
    return { first, next: () => repeat(1000, frame("data", 0, 1)) };
  },
};

/** CPU seconds that a flood may cost until it is cut: far above the usual, far below an uncut flood's. */
const FLOOD_SECONDS = 10;

test(
  "F40 HTTP/2 floods are ended, cost little, and leave others alone",
  async () => {
    const vault = await startVaultProcess();
    const { client, before } = await settle(vault);
    const to = { host: vault.host, port: vault.port, localAddress: ELSEWHERE };
    for (const [name, flood] of Object.entries(FLOODS)) {
      const [crowd, begun] = [new Crowd(), processorSeconds(vault.pid)];
      crowd.add(to, { first: PREFACE, ...flood() });
      const isOver = async (): Promise<boolean> => {
        await visit(client);
        return crowd.closed === 1;
      };
      await until(isOver, `the end of ${name}`);
      expect(processorSeconds(vault.pid) - begun, name).toBeLessThan(FLOOD_SECONDS);
      expect(residentBytes(vault.pid) - before, name).toBeLessThan(SLACK_BYTES);
    }
    expect(client.state).toBe("up");
  },
  TEST_MS_MAX,
);
