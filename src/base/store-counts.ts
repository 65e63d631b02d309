// Owns the reading of the counts that a sidecar has of stores that others run: each place has its own, and so has the bucket behind it.

/** A place as a sidecar's status has it. */
interface Place {
  address: string;
  /** null: a vault. */
  counts?: Readonly<Record<string, number>> | null;
  behind?: Place;
}

/** Returns the counts of places and of what is behind them; null: a vault's place has none. */
export function storeCounts(
  places: readonly Place[],
): { address: string; counts: Readonly<Record<string, number>> | null }[] {
  return places.flatMap(({ behind, address, counts = null }) => [
    { address, counts },
    ...(behind === undefined ? [] : storeCounts([behind])),
  ]);
}
