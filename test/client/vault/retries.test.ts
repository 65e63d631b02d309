// Owns the proof that a client's retries are few: one per request, a budget per vault, none while it is down.
import { once } from "node:events";
import { createServer } from "node:net";
import type { AddressInfo, Socket } from "node:net";
import { afterEach, expect, test, vi } from "vitest";
import { isTierkvError } from "../../../src/base/errors.ts";
import {
  BREAKER_FAILURES,
  RETRY_TOKENS_MAX,
  RETRY_TOKENS_PER_ANSWER,
  RETRY_TOKENS_PER_S,
} from "../../../src/base/limits/general.ts";
import type * as Limits from "../../../src/base/limits/general.ts";
import { Retries } from "../../../src/client/vault/retries.ts";
import { openFakeVault } from "../../support/fake-vault.ts";
import { lanePeer } from "../../support/lanes.ts";
import { keysOf, makeRecords, NAMESPACE } from "../../support/records.ts";
import { closeAfterTest, openClient, SOON_MS, until } from "../../support/vaults.ts";

// Probes are off, because a vault that is down must stay so.
vi.mock("../../../src/base/limits/general.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  PROBE_MIN_MS: 3_600_000,
  PROBE_MAX_MS: 3_600_001,
}));

afterEach(() => void vi.useRealTimers());

const KEYS = keysOf(makeRecords(1));

test("F33 second tries end with the budget, which answers and time bring back", () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  const retries = new Retries();
  const taken = (): number =>
    Array.from({ length: 1_000 }, () => retries.take()).filter(Boolean).length;
  expect(taken()).toBe(RETRY_TOKENS_MAX);
  expect(retries.counts).toEqual({ taken: RETRY_TOKENS_MAX, refused: 1_000 - RETRY_TOKENS_MAX });
  // One more than the quotient, because a tenth is inexact.
  for (let answer = 0; answer <= 5 / RETRY_TOKENS_PER_ANSWER; answer += 1) retries.answered();
  expect(taken()).toBe(5);
  vi.advanceTimersByTime(3_000);
  expect(taken()).toBe(3 * RETRY_TOKENS_PER_S);
  vi.advanceTimersByTime(3_600_000);
  expect(taken()).toBe(RETRY_TOKENS_MAX);
});

test("F33 requests that fail together are tried once more as far as the budget goes, and no third time", async () => {
  const sockets = new Set<Socket>();
  const peer = lanePeer((socket) => sockets.add(socket));
  let asked = 0;
  const Lookup = (_call: unknown, done: (error: null, reply: unknown) => void): void => {
    asked += 1;
    done(null, { present: Buffer.from([1]) });
  };
  const client = openClient(await openFakeVault({ Lookup }, peer));
  await client.hello(SOON_MS);
  await until(() => client.lanes === "up", "the lanes");
  const requests = RETRY_TOKENS_MAX + 8;
  const answers = Array.from({ length: requests }, () => client.lookup(NAMESPACE, KEYS, SOON_MS));
  const settled = Promise.allSettled(answers);
  await until(() => sockets.size > 0, "the requests to be on the lanes");
  for (const socket of sockets) socket.destroy();
  const failed = (await settled).flatMap((one) =>
    one.status === "rejected" ? [one.reason as unknown] : [],
  );
  expect(asked).toBe(requests - failed.length);
  expect(failed.length).toBeGreaterThanOrEqual(8 - RETRY_TOKENS_MAX * RETRY_TOKENS_PER_ANSWER - 1);
  expect(failed.length).toBeLessThanOrEqual(8);
  for (const error of failed) expect(isTierkvError(error) && error.code).toBe("VAULT_BUSY");
  expect(client.retries.refused).toBe(failed.length);
});

test("F33 thousands of calls at vaults that are all down make a handful of connections", async () => {
  let connections = 0;
  const server = createServer((socket) => {
    connections += 1;
    socket.destroy();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  closeAfterTest(server);
  const address = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  const clients = [openClient({ address }), openClient({ address }, "ssm")];
  let failures = 0;
  for (let call = 0; call < 2_000; call += 1) {
    for (const client of clients) {
      await client.lookup(NAMESPACE, KEYS, SOON_MS).catch(() => {
        failures += 1;
      });
    }
  }
  expect(failures).toBe(4_000);
  expect(clients.map(({ state }) => state)).toEqual(["down", "down"]);
  expect(connections).toBeLessThanOrEqual(clients.length * BREAKER_FAILURES * 2);
});
