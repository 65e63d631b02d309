// Owns the tests of which sidecars a vault tells of flushes when more have come than it remembers.
import type { sendUnaryData, ServerUnaryCall } from "@grpc/grpc-js";
import { expect, test } from "vitest";
import { WATCHERS_MAX } from "../../../src/base/limits/general.ts";
import { FlushLog } from "../../../src/vault/flushes/flush-log.ts";
import { Watchers } from "../../../src/vault/flushes/watchers.ts";
import type { WatchReply, WatchRequest } from "../../../src/wire/messages.ts";
import { closeAfterTest, logger } from "../../support/vaults.ts";

const SAID = { blocks: 0, bytes: 0, saves: 0, leaving: false, draining: false, capacityBytes: 0 };

function open(): {
  log: FlushLog;
  watchers: Watchers;
  watch(client: string, flushed: number): { error: unknown; reply: WatchReply | null };
} {
  const log = new FlushLog(null, logger);
  const watchers = new Watchers(log, 1, () => 1);
  closeAfterTest({ close: () => watchers.stop() });
  return {
    log,
    watchers,
    watch(client, flushed) {
      const answered: { error: unknown; reply: WatchReply | null } = { error: null, reply: null };
      const request = { ...SAID, client, name: client, flushed };
      const call = { request, once: () => {} } as unknown as ServerUnaryCall<
        WatchRequest,
        WatchReply
      >;
      const callback: sendUnaryData<WatchReply> = (error, reply = null) => {
        Object.assign(answered, { error, reply });
      };
      watchers.watch(call, callback);
      return answered;
    },
  };
}

test("a sidecar that comes after many that went without notice is told of flushes in place of the first of them", async () => {
  const { log, watchers, watch } = open();
  // A wrong number is answered at once, so that no call is held.
  for (let one = 0; one < WATCHERS_MAX; one += 1) watch(`gone ${one}`, 7);
  const here = watch("here", 0);
  const { number } = log.begin({ namespaces: null, recordClass: 0, model: "", tenant: 0 });
  log.carriedOut(number);
  const telling = watchers.tell(number);
  expect(here).toMatchObject({ error: null, reply: { flushes: { number } } });
  watch("here", number);
  const told = await telling;
  expect(told).toHaveLength(WATCHERS_MAX);
  expect(told.filter(({ confirmed }) => confirmed).map(({ name }) => name)).toEqual(["here"]);
  expect(told.map(({ name }) => name)).not.toContain("gone 0");
});

test("one more than the calls that a vault holds is refused", () => {
  const { watch } = open();
  for (let one = 0; one < WATCHERS_MAX; one += 1) watch(`here ${one}`, 0);
  const details = expect.stringContaining("the limit is") as string;
  expect(watch("late", 0).error).toMatchObject({ details });
});
