// Owns the families of samples of sidecar and vault, which prom-client prints for Prometheus.
import { Gauge, Registry } from "prom-client";
import type { MetricType } from "prom-client";

export type FamilyKind = "counter" | "gauge" | "histogram";

export interface Sample {
  /** Suffix of the family's name: `_bucket`, `_sum`, `_count`. */
  suffix?: string;
  labels?: Readonly<Record<string, string>>;
  value: number;
}

export interface Family {
  /** With unit and, for a counter, `_total`. */
  name: string;
  kind: FamilyKind;
  help: string;
  /** The label that distinguishes its samples, even while there are none. */
  label?: string;
  samples: readonly Sample[];
}

export const CONTENT_TYPE: string = Registry.PROMETHEUS_CONTENT_TYPE;

/** HELP of a gauge that both processes have. */
export const FAILPOINTS_HELP = "Armed failpoints; above 0 only in a test.";

/** A family that prom-client prints unchanged, because its values are counted elsewhere, for status, too. */
class Shown extends Gauge {
  readonly #family: Family;

  constructor(family: Family) {
    super({ name: family.name, help: family.help, registers: [] });
    this.#family = family;
  }

  override async get(): ReturnType<Gauge["get"]> {
    const { name, kind, samples } = this.#family;
    const values = samples.map(({ suffix = "", labels = {}, value }) => ({
      metricName: `${name}${suffix}`,
      labels: { ...labels },
      value,
    }));
    // The declared type of `type` is a number; prom-client prints it as text.
    return { ...(await super.get()), type: kind as unknown as MetricType, values };
  }
}

/** Prints families, without those that have no samples. */
export async function exposition(families: readonly Family[]): Promise<string> {
  const registry = new Registry();
  for (const family of families) {
    if (family.samples.length > 0) registry.registerMetric(new Shown(family));
  }
  return await registry.metrics();
}

export function gauge(name: string, help: string, value: number | readonly Sample[]): Family {
  return { name, kind: "gauge", help, samples: typeof value === "number" ? [{ value }] : value };
}

/** `name`: without `_total`. */
export function counter(name: string, help: string, value: number | readonly Sample[]): Family {
  return { ...gauge(`${name}_total`, help, value), kind: "counter" };
}
