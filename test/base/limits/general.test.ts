// Owns the proof that limits fit together where one stands inside another, and that their page is current.
import { expect, test } from "vitest";
import * as limits from "../../../src/base/limits/general.ts";
import { renderLimitsPage } from "../../support/limits-page.ts";

test("docs/limits.md is current; renew it with `npx vitest run -c test/vitest.config.ts test/base/limits/general.test.ts -u`", async () => {
  await expect(renderLimitsPage()).toMatchFileSnapshot("../../../docs/limits.md");
});

const VALUES = { ...limits };

test.each<[inner: keyof typeof limits, outer: keyof typeof limits]>([
  ["PROTOCOL_MIN", "PROTOCOL_MAX"],
  ["FRAME_BYTES_MAX", "FRAMES_OUT_BYTES_MAX"],
  ["CLIENT_CALLS_MAX", "STREAMS_MAX"],
  ["VAULT_DRAIN_MS", "DRAIN_TIMEOUT_MS"],
  ["SAVE_DRAIN_MS", "DRAIN_TIMEOUT_MS"],
  ["RESTORE_STALL_MS_DEFAULT", "RESTORE_WAIT_MS_DEFAULT"],
  ["RESTORE_WAIT_MS_DEFAULT", "RESTORE_WAIT_MS_MAX"],
  ["ARENA_BYTES_MIN", "ARENA_BYTES_DEFAULT"],
  ["ARENA_BYTES_DEFAULT", "ARENA_BYTES_MAX"],
  ["VAULT_BYTES_MIN", "VAULT_BYTES_MAX"],
  ["PROBE_MIN_MS", "PROBE_MAX_MS"],
  ["RECONNECT_MIN_MS", "RECONNECT_MAX_MS"],
  ["LANES_AGAIN_MS", "RESTORE_STALL_MS_DEFAULT"],
  ["LANES_PAUSE_MIN_MS", "LANES_BACK_MS"],
])("%s is within %s", (inner, outer) => {
  expect(VALUES[inner]).toBeLessThanOrEqual(VALUES[outer]);
});
