// Owns the form of a fault row: the fault, the required behaviour, and its tests.

export interface FaultRow {
  id: string;
  fault: string;
  behaviour: string;
  /** Files with a test whose title begins with the id, which injects the fault and checks the behaviour. */
  tests: readonly string[];
  /** Part that no test drives yet. */
  open?: string;
  /** Reason why no test drives it under load. */
  unloaded?: string;
}

export const row = (
  id: string,
  fault: string,
  behaviour: string,
  tests: readonly string[],
  rest: Pick<FaultRow, "open" | "unloaded"> = {},
): FaultRow => ({ id, fault, behaviour, tests, ...rest });

/** Reason why load would prove nothing. */
export const AT_START = { unloaded: "happens before anything is served" };
