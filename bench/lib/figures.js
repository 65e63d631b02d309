// Owns the form of a figure: samples with median and range, a comparison, and a floor.

export function quantile(samples, share) {
  const ordered = [...samples].sort((a, b) => a - b);
  return ordered[Math.max(0, Math.ceil(share * ordered.length) - 1)] ?? Number.NaN;
}

export function median(samples) {
  const ordered = [...samples].sort((a, b) => a - b);
  const middle = ordered.length >> 1;
  return ordered.length % 2 === 1 ? ordered[middle] : (ordered[middle - 1] + ordered[middle]) / 2;
}

/**
 * One line of the result. `samples` are in `unit`. `beside` are samples of the same rounds as divisors: the ratio is the
 * median of the ratios round by round, because a slow moment of the machine slows both. `floor` bounds the value or
 * the ratio: `{ on: "ratio", least: 0.45 }`, `{ on: "value", most: 1 }`.
 */
export function figure(name, unit, samples, { beside = null, of = null, floor = null, note } = {}) {
  const ratios = beside?.map((base, round) => samples[round] / base) ?? null;
  return describe({
    name,
    unit,
    value: median(samples),
    min: Math.min(...samples),
    max: Math.max(...samples),
    samples: samples.length,
    ...(ratios === null
      ? {}
      : {
          ratio: median(ratios),
          ratioMin: Math.min(...ratios),
          ratioMax: Math.max(...ratios),
          of,
        }),
    ...(floor === null ? {} : { floor }),
    ...(note === undefined ? {} : { note }),
  });
}

/** A figure measured elsewhere: one value, perhaps with a ratio. */
export function describe(given) {
  const { floor } = given;
  if (floor === undefined) return given;
  const bounded = floor.on === "ratio" ? given.ratio : given.value;
  const isMet = bounded >= (floor.least ?? -Infinity) && bounded <= (floor.most ?? Infinity);
  return { ...given, isMet };
}

/** Returns GB/s (1e9 bytes) for each measured time. */
export function gigabytesPerSecond(bytes, seconds) {
  return seconds.map((each) => bytes / each / 1e9);
}

export function perGigabyte(seconds, bytes) {
  return seconds.map((each) => (each / bytes) * 1e9);
}

/** Returns the seconds that `work` takes. */
export async function timed(work) {
  const startedNs = process.hrtime.bigint();
  await work();
  return Number(process.hrtime.bigint() - startedNs) / 1e9;
}

/** Runs every measure once a round, so that all see the same machine; returns seconds by name. */
export async function interleaved(rounds, measures) {
  const seconds = Object.fromEntries(Object.keys(measures).map((name) => [name, []]));
  for (let round = 0; round < rounds; round += 1) {
    for (const [name, measure] of Object.entries(measures)) {
      seconds[name].push(await measure(round));
    }
  }
  return seconds;
}

/** Returns how well `one` and `other` can be told apart (area under the curve): 0.5 is a guess, 1 is certainty. */
export function auc(one, other) {
  const all = [
    ...Array.from(one, (value) => ({ value, isOther: 0 })),
    ...Array.from(other, (value) => ({ value, isOther: 1 })),
  ].sort((a, b) => a.value - b.value);
  let [below, wins] = [0, 0];
  for (let from = 0; from < all.length;) {
    let to = from;
    while (to < all.length && all[to].value === all[from].value) to += 1;
    const tied = all.slice(from, to);
    const others = tied.reduce((sum, { isOther }) => sum + isOther, 0);
    const ones = tied.length - others;
    wins += others * (below + ones / 2);
    below += ones;
    from = to;
  }
  const area = wins / (one.length * other.length);
  return Math.max(area, 1 - area);
}
