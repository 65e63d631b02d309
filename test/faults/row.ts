// Owns the form of a fault row: what may go wrong, what must then happen, and which tests drive it.

export interface FaultRow {
  id: string;
  fault: string;
  behaviour: string;
  /** Files with a test whose title begins with the id: the fault is injected and what must happen is checked. */
  tests: readonly string[];
  /** What no test drives yet. */
  open?: string;
  /** Why no test drives it under load. */
  unloaded?: string;
}

export const row = (
  id: string,
  fault: string,
  behaviour: string,
  tests: readonly string[],
  rest: Pick<FaultRow, "open" | "unloaded"> = {},
): FaultRow => ({ id, fault, behaviour, tests, ...rest });

/** Why load would prove nothing. */
export const AT_START = { unloaded: "settled before anything is served" };
