// Owns the proof of the text format: labels escaped, histograms cumulative, times in seconds, prefixes become labels.
import { expect, test } from "vitest";
import { Histogram } from "../../src/base/metrics.ts";
import { counterFamilies, histogramFamily } from "../../src/exposition/counters.ts";
import { exposition, gauge } from "../../src/exposition/text.ts";

test("labels and help are escaped, and families without samples are left out", async () => {
  const labels = { at: 'a"b\\c\nd' };
  const text = await exposition([
    gauge("x", "one\ntwo", [{ labels, value: 1.5 }]),
    gauge("y", "", []),
  ]);
  expect(text).toBe('# HELP x one\\ntwo\n# TYPE x gauge\nx{at="a\\"b\\\\c\\nd"} 1.5\n');
});

test("counters of one prefix become one family; microseconds become seconds", async () => {
  const grouped = [{ prefix: "miss_", name: "misses", label: "reason", help: "Why." }];
  const counts = { miss_evicted: 2, busy_us: 1_500_000, miss_never_stored: 1 };
  const families = counterFamilies("t", counts, { busy_us: "Busy." }, grouped);
  const lines = (await exposition(families)).split("\n");
  expect(lines).toContain("# HELP t_busy_seconds_total Busy.");
  expect(lines.filter((line) => line !== "" && !line.startsWith("#"))).toEqual([
    "t_busy_seconds_total 1.5",
    't_misses_total{reason="evicted"} 2',
    't_misses_total{reason="never_stored"} 1',
  ]);
});

test("a histogram's buckets add up, and one above all bounds is counted at last", () => {
  const histogram = new Histogram();
  for (const seconds of [0.001, 0.002, 0.002, 1000]) histogram.observe(seconds);
  const { samples } = histogramFamily("t", "", [{ of: histogram.snapshot() }]);
  const of = (bound: string): number | undefined =>
    samples.find(({ labels }) => labels?.["le"] === bound)?.value;
  expect([of("0.001"), of("0.0025"), of("30"), of("+Inf")]).toEqual([1, 3, 3, 4]);
  expect(samples.at(-2)?.value).toBeCloseTo(1000.005);
});
