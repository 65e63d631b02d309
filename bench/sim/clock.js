// Owns virtual time: while a simulation runs, the process's clock says what the simulation does.

/**
 * Runs `work`, which may not wait, with the time that `clock.ms` says; the process's own comes back after it.
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
