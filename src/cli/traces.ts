// Owns where a process's spans go: the collector that its configuration names, or nowhere.
import type { OtlpExporter, OtlpOptions } from "../exposition/otlp.ts";
import type { Logger } from "../log.ts";
import { packageVersion } from "../version.ts";

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
