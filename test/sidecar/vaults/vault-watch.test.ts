// Owns the proof that a vault's displayed round trip never includes opening a connection.
import { expect, test, vi } from "vitest";
import { VaultWatch } from "../../../src/sidecar/vaults/vault-watch.ts";
import { openClient, openVault, until } from "../../support/vaults.ts";

test("a vault's first answer opens the connection, and the second is the one that is timed", async () => {
  const kv = openClient(await openVault());
  const asked = vi.spyOn(kv, "stats");
  const onLook = vi.fn<() => void>();
  const watch = new VaultWatch({ kv: [kv], ssm: [] }, onLook);
  watch.look();
  await until(() => watch.seen(kv) !== null, "the vault to be seen");
  expect(asked.mock.calls).toHaveLength(2);
  expect(onLook).toHaveBeenCalledTimes(1);
});
