// Owns the telemetry of a process: metrics for Prometheus, and spans for the configured collector.
import type { Running } from "../base/lifecycle.ts";
import type { Logger } from "../base/log.ts";
import { packageVersion } from "../base/version.ts";
import type { Address } from "../config/config.ts";
import type { OtlpExporter, OtlpOptions } from "./otlp.ts";
import type { Family } from "./text.ts";

/** Serves `read` and `trouble` to scrapers; undefined: `[section] metrics_listen` is not set. */
export async function startScrape(
  section: "sidecar" | "vault" | "gateway",
  listen: Address | null,
  logger: Logger,
  read: () => readonly Family[] | Promise<string>,
  trouble: () => string | null,
): Promise<Running | undefined> {
  if (listen === null) return undefined;
  const [{ startScrapeServer }, { exposition }] = await Promise.all([
    import("./server.ts"),
    import("./text.ts"),
  ]);
  const server = await startScrapeServer({
    listen,
    key: `[${section}] metrics_listen`,
    read: async () => {
      const found = await read();
      return typeof found === "string" ? found : await exposition(found);
    },
    trouble,
  });
  logger.info({ url: server.url }, "metrics can be scraped");
  return server;
}

/** null: no traces are configured, and their code is not loaded. */
export async function openExporter(
  process: "sidecar" | "vault",
  endpoint: string | null,
  logger: Logger,
  counters: OtlpOptions["counters"],
): Promise<OtlpExporter | null> {
  if (endpoint === null) return null;
  const { OtlpExporter } = await import("./otlp.ts");
  logger.info({ endpoint }, "traces are sent");
  const service = `tierkv-${process}` as const;
  return new OtlpExporter({ endpoint, service, version: packageVersion(), counters, logger });
}
