// Owns the keys of machines that people use: a vault gives way to them, and one that sleeps is woken.
import {
  YIELD_GRACE_S_DEFAULT,
  YIELD_IDLE_S_DEFAULT,
  YIELD_IDLE_S_MIN,
  YIELD_S_MAX,
} from "../limits/user.ts";
import type { ClusterConfig, VaultConfig } from "./config.ts";
import type { Field } from "./field.ts";
import { boolean, integer } from "./kinds.ts";
import { sleepers } from "./wake.ts";

export const VAULT_YIELD: {
  yield_to_user: Field<VaultConfig["yieldToUser"]>;
  yield_idle_s: Field<VaultConfig["yieldIdleS"]>;
  yield_grace_s: Field<VaultConfig["yieldGraceS"]>;
  keep_awake: Field<VaultConfig["keepAwake"]>;
} = {
  yield_to_user: {
    kind: boolean,
    doc: "Gives way to whoever uses this machine. Input at a terminal, at the desktop (logind; IOHIDSystem on macOS), or programs that take half of all processors end every connection within a second; what the vault holds is computed again meanwhile, or comes from other vaults where the pool has `redundancy`.",
    fallback: () => false,
    fallbackText: "`false`",
    example: "true",
  },
  yield_idle_s: {
    kind: integer(YIELD_IDLE_S_MIN, YIELD_S_MAX, "s"),
    doc: "With `yield_to_user`: the vault serves again after so long without any of that.",
    fallback: () => YIELD_IDLE_S_DEFAULT,
    fallbackText: String(YIELD_IDLE_S_DEFAULT),
    example: "300",
  },
  yield_grace_s: {
    kind: integer(0, YIELD_S_MAX, "s"),
    doc: "With `yield_to_user`: who stays longer gets the vault's memory back. What was read again or is kept by sessions goes to the other vaults of its `pool_key` first, at most 100 Mb/s and two minutes. Records in `data_dir` are found again afterwards; without one they are gone.",
    fallback: () => YIELD_GRACE_S_DEFAULT,
    fallbackText: String(YIELD_GRACE_S_DEFAULT),
    example: "60",
  },
  keep_awake: {
    kind: boolean,
    doc: "Keeps this machine from falling asleep by itself while the vault holds records and is asked for them, and 15 minutes longer, by `systemd-inhibit` (`caffeinate` on macOS). Who sends it to sleep still can. Where that is missing or refused the log says so once, and the machine sleeps as it is set up to.",
    fallback: () => false,
    fallbackText: "`false`",
    example: "true",
  },
};

export const WAKE: Field<ClusterConfig["wake"]> = {
  kind: sleepers,
  doc: "Machines that sleep, by the host of their vault's address, each with the address of its network card. When their records are wanted and the vault does not answer, wake-on-LAN's packet goes to all networks of this machine, at most every minute. The machine's firmware must allow it.",
  fallback: () => [],
  fallbackText: "none",
  example: '["192.168.1.10=00:11:22:aa:bb:cc"]',
};
