// Owns the proof that a connection without an admitted call is closed.
import { expect, test, vi } from "vitest";
import type * as Limits from "../../../src/base/limits/access.ts";
import {
  connectTo,
  EMPTY_BYTES,
  openClosedVault,
  rawCall,
  TOKENS,
} from "../../support/closed-vaults.ts";
import { until } from "../../support/vaults.ts";

vi.mock("../../../src/base/limits/access.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  LISTENER_DEADLINE_MS: 2_000,
}));

test("a connection ends without an admitted call, and stays with one", async () => {
  const vault = await openClosedVault();
  const friend = { token: TOKENS.read };
  const known = connectTo(vault, friend);
  const path = "/tierkv.v1.Vault/Stats";
  expect((await rawCall(known, path, friend, EMPTY_BYTES)).status).toBe(0);
  const silent = connectTo(vault, {});
  const refused = connectTo(vault, {});
  await rawCall(refused, path, {}, EMPTY_BYTES);
  await until(() => silent.destroyed && refused.destroyed, "the end of both connections");
  expect((await rawCall(known, path, friend, EMPTY_BYTES)).status).toBe(0);
});
