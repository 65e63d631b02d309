// Owns the options of a client's lanes: rails, trust and callbacks.
import type { Logger } from "../../base/log.ts";
import type { Goodput, LaneClientTls, LaneRail } from "../../base/native.ts";
import type { ChannelSecurity } from "../../wire/security.ts";
import type { Retries } from "./retries.ts";

export interface LanesOptions {
  /** Returns the rails to the vault that work now, at least one. */
  rails(): LaneRail[];
  /** Called when some of several rails made the lanes break, or not open. */
  onRailsFailed(rails: readonly LaneRail[], reason: string): void;
  /** Number of lanes; 0 for a client that moves no records. */
  count: number;
  /** Name of the vault in logs. */
  label: string;
  logger: Logger;
  /** Returns the certificates to trust and show now; undefined: lanes are in the clear. */
  tls(): LaneClientTls | undefined;
  /** Meters of bytes: `down` for arrivals, `up` for stored records that the vault took. */
  down: Goodput;
  up: Goodput;
  /** Budget for second tries after failures. */
  retries: Retries;
  /** Says hello again, because every session needs its own token. */
  renew(): Promise<unknown>;
}

/** Returns the certificates of lanes; the hello's token replaces the token of calls. */
export function laneTls(security: ChannelSecurity | null): LaneClientTls | undefined {
  if (security === null) return undefined;
  const { caPem, serverName, certPem, keyPem } = security;
  const own = certPem === null || keyPem === null ? {} : { certPem, keyPem };
  return { caPem, serverName, ...own };
}
