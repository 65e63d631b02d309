// Owns the tests of a vault's bounds in time and number, with limits made small.
import { connect } from "node:net";
import { Client, credentials } from "@grpc/grpc-js";
import type { ClientReadableStream } from "@grpc/grpc-js";
import { expect, test, vi } from "vitest";
import { splitAddress } from "../../src/base/hosts.ts";
import type * as Limits from "../../src/base/limits/general.ts";
import {
  VAULT_PEER_WAITING_MAX,
  VAULT_STREAMS_MAX,
  VAULT_WAITING_MAX,
} from "../../src/base/limits/general.ts";
import { ServingStatus } from "../../src/wire/messages.ts";
import type { HealthCheckResponse } from "../../src/wire/messages.ts";
import { healthService } from "../../src/wire/service.ts";
import { openClosedVault, shown, TOKENS } from "../support/closed-vaults.ts";
import { closeAfterTest, openClient, openVault, SOON_MS, until } from "../support/vaults.ts";

vi.mock("../../src/base/limits/general.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  VAULT_STREAMS_MAX: 3,
  VAULT_WAITING_MAX: 6,
  VAULT_PEER_WAITING_MAX: 4,
}));

test("more streams than allowed are refused as busy, and places come back", async () => {
  const vault = await openVault();
  const watch = (): ClientReadableStream<HealthCheckResponse> => {
    const { path, requestSerialize, responseDeserialize } = healthService.Watch;
    const raw = closeAfterTest(new Client(vault.address, credentials.createInsecure()));
    const question = { service: "" };
    return raw.makeServerStreamRequest(path, requestSerialize, responseDeserialize, question);
  };
  const answered = (): Promise<number | string> => {
    const call = watch();
    return new Promise((resolve) => {
      call.once("data", ({ status }: HealthCheckResponse) => resolve(status));
      call.once("error", ({ message }: Error) => resolve(message));
      closeAfterTest({ close: () => call.cancel() });
    });
  };
  const holders = Array.from({ length: VAULT_STREAMS_MAX }, watch);
  for (const holder of holders) {
    holder.on("error", () => {});
    await new Promise((resolve) => holder.once("data", resolve));
  }
  expect(await answered()).toContain(`the limit is ${VAULT_STREAMS_MAX}`);
  holders[0]?.cancel();
  await until(async () => (await answered()) === ServingStatus.SERVING, "a free place");
});

/** Opens so many silent connections from one address; returns a function for the open ones. */
function crowdFrom(localAddress: string, address: string): () => number {
  const sockets = Array.from({ length: VAULT_WAITING_MAX }, () =>
    connect({ ...splitAddress(address), localAddress }).on("error", () => {}),
  );
  closeAfterTest({ close: () => sockets.map((socket) => socket.destroy()) });
  return () => sockets.filter((socket) => !socket.closed).length;
}

test("F36 of connections that wait, those above an address's share and above that of all give way, the oldest first", async () => {
  const vault = await openVault();
  const refused = (): number => vault.counters.get("connections_refused");
  const open = crowdFrom("127.0.0.2", vault.address);
  await until(() => open() === VAULT_PEER_WAITING_MAX, "the share of one address");
  const left = VAULT_WAITING_MAX - VAULT_PEER_WAITING_MAX;
  expect(refused()).toBe(left);
  const others = crowdFrom("127.0.0.3", vault.address);
  await until(() => others() === VAULT_PEER_WAITING_MAX, "the share of another one");
  await until(() => open() === left, "the first address to give way");
  expect(refused()).toBe(VAULT_WAITING_MAX);
});

test("F36 who holds a token is served while an address has its share of connections that have not got through TLS", async () => {
  const vault = await openClosedVault();
  const open = crowdFrom("127.0.0.2", vault.address);
  await until(() => open() === VAULT_PEER_WAITING_MAX, "the share of one address");
  const client = openClient(vault, "kv", { security: shown(vault, TOKENS.read), lanes: 0 });
  expect((await client.stats(SOON_MS)).records).toBe(0);
});
