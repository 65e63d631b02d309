// Owns the proof that accounts of requests fit into the frames that show them, whatever clients call their requests.
import { expect, test } from "vitest";
import {
  EXPLAIN_MAX,
  FRAME_BYTES_MAX,
  FRAME_TEXT_BYTES_MAX,
} from "../../../src/base/limits/general.ts";
import { newSidecarCounters } from "../../../src/base/metrics.ts";
import { encodeFrame } from "../../../src/sidecar/socket/frames.ts";
import { Decisions } from "../../../src/sidecar/trace/decisions.ts";
import { Ledger } from "../../../src/sidecar/trace/ledger.ts";
import { logger } from "../../support/vaults.ts";

test("long names of requests are kept by their beginning, and found by the whole", () => {
  const decisions = new Decisions(newSidecarCounters(), logger, new Ledger());
  const req = "r".repeat(FRAME_TEXT_BYTES_MAX);
  const asked = { req, why: "own_cache", tokens: 1, ownTokens: 1, traceparent: req } as const;
  for (let count = 0; count < EXPLAIN_MAX; count += 1) decisions.unasked("engine", asked);
  const accounts = decisions.find(req, EXPLAIN_MAX);
  expect(accounts).toHaveLength(EXPLAIN_MAX);
  expect(encodeFrame({ accounts }).length).toBeLessThan(FRAME_BYTES_MAX);
});
