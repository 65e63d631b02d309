// Owns what a process of ours tells others of itself: metrics to Prometheus, and spans to the collector that its configuration names.
import type { Address } from "../config/config.ts";
import type { OtlpExporter, OtlpOptions } from "../exposition/otlp.ts";
import type { Family } from "../exposition/text.ts";
import type { Running } from "../lifecycle.ts";
import type { Logger } from "../log.ts";
import { packageVersion } from "../version.ts";

/** Serves what `read` and `trouble` tell while they are asked; undefined: `[section] metrics_listen` is not set. */
export async function startScrape(
  section: "sidecar" | "vault",
  listen: Address | null,
  logger: Logger,
  read: () => readonly Family[],
  trouble: () => string | null,
): Promise<Running | undefined> {
  if (listen === null) return undefined;
  const { startScrapeServer } = await import("../exposition/server.ts");
  const server = await startScrapeServer({
    listen,
    key: `[${section}] metrics_listen`,
    read,
    trouble,
  });
  logger.info({ url: server.url }, "metrics can be scraped");
  return server;
}

/** null: no traces are wanted, and nothing of them is loaded. */
export async function openExporter(
  process: "sidecar" | "vault",
  endpoint: string | null,
  logger: Logger,
  counters: OtlpOptions["counters"],
): Promise<OtlpExporter | null> {
  if (endpoint === null) return null;
  const { OtlpExporter } = await import("../exposition/otlp.ts");
  logger.info({ endpoint }, "traces are sent");
  const service = `tierkv-${process}` as const;
  return new OtlpExporter({ endpoint, service, version: packageVersion(), counters, logger });
}
