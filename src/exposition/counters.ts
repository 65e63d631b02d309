// Owns how the counters of a process become families: names that share a prefix become one family with a label.
import type { HistogramSnapshot } from "../base/metrics.ts";
import { counter } from "./text.ts";
import type { Family, Sample } from "./text.ts";

/** Counters whose names start with `prefix`; the rest of a name is the label's value. */
export interface CounterFamily {
  prefix: string;
  name: string;
  label: string;
  help: string;
}

const MICROSECONDS = /_us$/;
/** HELP text of the name that counts for all names beyond the limit. */
const OTHER_HELP = "Counts of all names beyond the limit of names.";

/** `process` is the first part of every name: `tierkv_sidecar`. `texts`: HELP by counter. */
export function counterFamilies(
  process: string,
  counts: Readonly<Record<string, number>>,
  texts: Readonly<Record<string, string>>,
  grouped: readonly CounterFamily[],
): Family[] {
  const singles: Family[] = [];
  const samples = new Map<CounterFamily, Sample[]>(grouped.map((family) => [family, []]));
  for (const [name, value] of Object.entries(counts)) {
    const family = grouped.find(({ prefix }) => name.startsWith(prefix));
    if (family === undefined) singles.push(single(process, name, value, texts[name]));
    else {
      const labels = { [family.label]: name.slice(family.prefix.length) };
      samples.get(family)?.push({ labels, value });
    }
  }
  const families = grouped.map((family): Family => {
    const { name, help, label } = family;
    return { ...counter(`${process}_${name}`, help, samples.get(family) ?? []), label };
  });
  return [...singles, ...families];
}

/** Converts times to seconds, Prometheus's unit. */
function single(process: string, name: string, value: number, help = OTHER_HELP): Family {
  const isTime = MICROSECONDS.test(name);
  const shown = isTime ? name.replace(MICROSECONDS, "_seconds") : name;
  return counter(`${process}_${shown}`, help, isTime ? value / 1e6 : value);
}

/** One histogram, or one for each value of a label. */
export function histogramFamily(
  name: string,
  help: string,
  snapshots: readonly { labels?: Readonly<Record<string, string>>; of: HistogramSnapshot }[],
): Family {
  const samples = snapshots.flatMap(({ labels = {}, of }) => histogramSamples(labels, of));
  return { name, kind: "histogram", help, samples };
}

function histogramSamples(
  labels: Readonly<Record<string, string>>,
  { bounds, counts, sum, count }: HistogramSnapshot,
): Sample[] {
  let below = 0;
  const buckets = bounds.map((bound, index): Sample => {
    below += counts[index] ?? 0;
    return { suffix: "_bucket", labels: { ...labels, le: String(bound) }, value: below };
  });
  return [
    ...buckets,
    { suffix: "_bucket", labels: { ...labels, le: "+Inf" }, value: count },
    { suffix: "_sum", labels, value: sum },
    { suffix: "_count", labels, value: count },
  ];
}
