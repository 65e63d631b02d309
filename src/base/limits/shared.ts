// Owns the limits of memory that the sidecars of a machine share.

/** Interval at which a sidecar checks for others' flushes, and cleans up after dead ones. */
export const SHARED_NEWS_MS = 500;
/** How long `tierkv doctor --shm` measures, about, and how long it waits for its process, with the polling interval, in ms. */
export const SHARED_MEASURE_MS = 5_000;
export const SHARED_PEER_START_MS = 30_000;
export const SHARED_POLL_MS = 20;
/** Machines that share one region; each has a place in it (`HOSTS_MAX` of its layout). */
export const SHARED_HOSTS_MAX = 8;
/** Longest path of a region. */
export const SHARED_PATH_BYTES_MAX = 4096;
/** How long shared memory has to answer a look-up before vaults are asked for the whole prompt, in ms. */
export const SHARED_FIRST_MS = 20;
