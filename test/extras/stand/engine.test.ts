// Owns the proof that the engine's metrics are read right.
import { expect, test } from "vitest";
import { sumOfMetric } from "../../../src/extras/stand/engine.ts";

const METRICS = `# HELP vllm:prefix_cache_hits_total Prefix cache hits.
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="demo"} 29696.0
vllm:prefix_cache_hits_total{engine="1",model_name="demo"} 4.0
vllm:prefix_cache_hits_created{engine="0",model_name="demo"} 1.79e+09
vllm:external_prefix_cache_hits_total{engine="0",model_name="demo"} 1.28e+02
plain_total 7
`;

test("a counter is summed over its labels; similar names do not count", () => {
  expect(sumOfMetric(METRICS, "vllm:prefix_cache_hits_total")).toBe(29_700);
  expect(sumOfMetric(METRICS, "vllm:external_prefix_cache_hits_total")).toBe(128);
  expect(sumOfMetric(METRICS, "plain_total")).toBe(7);
  expect(sumOfMetric(METRICS, "vllm:absent")).toBe(0);
});
