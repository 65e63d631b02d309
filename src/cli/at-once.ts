// Owns doing the same work for many items, a few at once.

/** Does the work of all items, `most` of them at once, and returns the results in order. After a rejection no further item begins. */
export async function eachAtOnce<T, R>(
  items: readonly T[],
  most: number,
  work: (item: T) => Promise<R>,
): Promise<R[]> {
  const left = items.entries();
  const results: R[] = [];
  let isOver = false;
  const lane = async (): Promise<void> => {
    for (const [at, item] of left) {
      if (isOver) return;
      results[at] = await work(item);
    }
  };
  try {
    await Promise.all(Array.from({ length: most }, lane));
  } finally {
    isOver = true;
  }
  return results;
}
