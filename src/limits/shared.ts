// Owns the limits of memory that the sidecars of a machine share.

/** How often a sidecar asks for flushes by others, and frees what dead ones held. */
export const SHARED_NEWS_MS = 500;
/** How long `tierkv doctor --shm` waits for the process that it starts, and how often it looks, in ms. */
export const SHARED_PEER_START_MS = 30_000;
export const SHARED_POLL_MS = 20;
/** Machines that share one region; each has a place in it (`HOSTS_MAX` of its layout). */
export const SHARED_HOSTS_MAX = 8;
/** Longest path of a region. */
export const SHARED_PATH_BYTES_MAX = 4096;
/** How long vaults wait for what shared memory says of a prompt, before they are asked for all of it, in ms. */
export const SHARED_FIRST_MS = 20;
