// Owns virtual time: a simulation sets the process's clock while it runs.

/**
 * Runs synchronous `work` with `performance.now` returning `clock.ms`, then restores it.
 * @template T
 * @param {{ ms: number }} clock
 * @param {() => T} work
 * @returns {T}
 */
export function inVirtualTime(clock, work) {
  const { now } = performance;
  const options = { configurable: true, writable: true };
  Object.defineProperty(performance, "now", { value: () => clock.ms, ...options });
  try {
    return work();
  } finally {
    Object.defineProperty(performance, "now", { value: now, ...options });
  }
}
