// Owns the limits of a pool of vaults: how its ring is cut, and how prompts are spread over it.

/** Vaults of one class. */
export const POOL_VAULTS_MAX = 16;
/** Positions on the hash ring of a node of weight 1. */
export const RING_NODES = 100;
/** Consecutive blocks of a prompt that lie on one vault. */
export const RUN_BLOCKS = 16;
