// Owns whether and where a process of ours can be scraped by Prometheus.
import type { Address } from "../config/config.ts";
import type { Family } from "../exposition/text.ts";
import type { Running } from "../lifecycle.ts";
import type { Logger } from "../log.ts";

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
