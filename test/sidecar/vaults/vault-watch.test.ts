// Owns the proof that a vault's displayed round trip never includes opening a connection, and that one that does not answer a look is told.
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

test("a vault that does not answer a look has a trouble until it answers one", async () => {
  const kv = openClient(await openVault());
  const watch = new VaultWatch({ kv: [kv], ssm: [] }, () => {});
  const looked = async (): Promise<void> => {
    const before = watch.lookedMs(kv);
    await until(() => {
      watch.look();
      const now = watch.lookedMs(kv);
      return now !== null && (before === null || now < before);
    }, "a look to end");
  };
  expect([watch.lookedMs(kv), watch.trouble(kv)]).toEqual([null, ""]);
  await looked();
  expect(watch.trouble(kv)).toBe("");
  const stats = vi.spyOn(kv, "stats").mockRejectedValue(new Error("no answer came"));
  await until(() => {
    watch.look();
    return watch.trouble(kv) !== "";
  }, "the failure");
  expect([watch.seen(kv), watch.trouble(kv), kv.state]).toEqual([null, "no answer came", "up"]);
  stats.mockRestore();
  await until(() => {
    watch.look();
    return watch.trouble(kv) === "";
  }, "the answer");
  expect(watch.seen(kv)).not.toBeNull();
});
