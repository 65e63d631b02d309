// Owns what the lanes of a client are opened with: the ways there are, whom to trust on them, and who hears of them.
import type { Logger } from "../log.ts";
import type { Goodput, LaneClientTls, LaneRail } from "../native.ts";
import type { ChannelSecurity } from "../wire/security.ts";
import type { Retries } from "./retries.ts";

export interface LanesOptions {
  /** The ways to the vault that work, as they are now; at least one. */
  rails(): LaneRail[];
  /** Some of several were the reason why they broke, or were not opened. */
  onRailsFailed(rails: readonly LaneRail[], reason: string): void;
  /** How many; 0: none, for who moves no records. */
  count: number;
  /** For the log. */
  label: string;
  logger: Logger;
  /** Whom to trust on them; absent: they are in clear. */
  tls?: LaneClientTls | undefined;
  /** What arrives is counted here, and what the vault took of stores. */
  down: Goodput;
  up: Goodput;
  /** What fails here may be tried again, as far as this goes. */
  retries: Retries;
  /** Says hello again: every session needs a token of its own. */
  renew(): Promise<unknown>;
}

/** What lanes trust and show; the token of the hello stands for the one of the calls. */
export function laneTls(security: ChannelSecurity | null): LaneClientTls | undefined {
  if (security === null) return undefined;
  const { caPem, serverName, certPem, keyPem } = security;
  const own = certPem === null || keyPem === null ? {} : { certPem, keyPem };
  return { caPem, serverName, ...own };
}
