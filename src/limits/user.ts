// Owns the limits of giving way to a machine's user: how it is watched, and when a vault comes back.

/** How often a vault looks whether somebody is there, and tries again to serve after that failed, in ms. */
export const YIELD_POLL_MS = 500;
export const YIELD_RETRY_MS = 10_000;
/** How often the desktop is asked, and how long it may take to answer, in ms. */
export const USER_ASK_MS = 1_000;
export const USER_ASK_TIMEOUT_MS = 3_000;
/** The share of all processors that programs of others take over this time, in ms, when somebody wants the machine. */
export const USER_LOAD_SHARE = 0.5;
export const USER_LOAD_SAMPLE_MS = 5_000;
/** `[vault] yield_idle_s` and `yield_grace_s`, as they are without being set, and their bounds: terminals' input is dated to 8 s. */
export const YIELD_IDLE_S_MIN = 10;
export const YIELD_IDLE_S_DEFAULT = 300;
export const YIELD_GRACE_S_DEFAULT = 60;
export const YIELD_S_MAX = 86_400;
/** How long other vaults may take to answer before a vault falls silent, in ms; who has not by then is given no records later. */
export const YIELD_HELLO_MS = 300;
/** At which rate, and for how long in ms, it then gives them what is hot before its memory goes: a tenth of a link of 1 Gb/s. */
export const YIELD_GIVE_BYTES_PER_S = 12_500_000;
export const YIELD_GIVE_MS = 120_000;
/** How often it is looked whether a vault is used, and how long after that `[vault] keep_awake` still holds, in ms. */
export const AWAKE_POLL_MS = 10_000;
export const AWAKE_IDLE_MS = 900_000;
/** Where wake-on-LAN's packet is sent, by custom: the discard port; and how often a machine is sent one, in ms. */
export const WAKE_PORT = 9;
export const WAKE_EVERY_MS = 60_000;
