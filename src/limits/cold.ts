// Owns the limits of stores that others run.

/** Time that the core has to end a request after its caller has timed out. */
export const COLD_GRACE_MS = 250;

/** Characters of a store's address. */
export const STORE_ADDRESS_MAX = 1024;
