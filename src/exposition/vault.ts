// Owns a vault's metrics for Prometheus.
import type { ArchiveStats, StatsReply } from "../wire/messages.ts";
import { counterFamilies } from "./counters.ts";
import type { CounterFamily } from "./counters.ts";
import { VAULT_HELP } from "./help.ts";
import { processFamilies } from "./process.ts";
import { gauge } from "./text.ts";
import type { Family } from "./text.ts";

const GROUPED: readonly CounterFamily[] = [
  {
    prefix: "refused_",
    name: "refused",
    label: "status",
    help: "Records that were not taken, by status.",
  },
];

const OWN = "tierkv_vault";

/** `isOpenToAll`: other machines get in without TLS and token. */
export function vaultFamilies(stats: StatsReply, isOpenToAll = false): Family[] {
  const { disk } = stats;
  const archive = disk?.archive ?? undefined;
  const tiers = (
    memory: number,
    onDisk: number | undefined,
    archived?: number,
  ): { labels: { tier: string }; value: number }[] => [
    { labels: { tier: "memory" }, value: memory },
    ...(onDisk === undefined ? [] : [{ labels: { tier: "disk" }, value: onDisk }]),
    ...(archived === undefined ? [] : [{ labels: { tier: "archive" }, value: archived }]),
  ];
  return [
    gauge(`${OWN}_info`, "The version that runs.", [
      { labels: { version: stats.version }, value: 1 },
    ]),
    gauge(`${OWN}_uptime_seconds`, "Since the start.", stats.uptimeMs / 1000),
    gauge(
      `${OWN}_bytes_max`,
      "Ceiling of each tier.",
      tiers(stats.maxBytes, disk?.maxBytes, archive?.maxBytes),
    ),
    gauge(
      `${OWN}_bytes_used`,
      "In use in each tier.",
      tiers(stats.usedBytes, disk?.usedBytes, archive?.usedBytes),
    ),
    gauge(
      `${OWN}_bytes_reserved`,
      "Memory of records in the middle of arriving.",
      stats.reservedBytes,
    ),
    gauge(
      `${OWN}_bytes_spare`,
      "Memory of records that are gone, kept for the next ones.",
      stats.spareBytes,
    ),
    gauge(`${OWN}_bytes_kept`, "Memory of records that sessions keep.", stats.keptBytes),
    gauge(`${OWN}_sessions`, "Sessions that are known.", stats.sessions),
    gauge(`${OWN}_records`, "Records in each tier.", tiers(stats.records, disk?.records)),
    gauge(`${OWN}_namespaces`, "Namespaces of the records in memory.", stats.namespaces),
    gauge(
      `${OWN}_insecure_lan`,
      "1 where other machines get in without TLS and token.",
      Number(isOpenToAll),
    ),
    gauge(`${OWN}_lanes`, "Lanes that are open.", stats.lanes),
    ...(disk === null || disk === undefined ? [] : diskFamilies(disk)),
    ...(archive === undefined ? [] : archiveFamilies(archive)),
    ...counterFamilies(OWN, stats.counters, VAULT_HELP, GROUPED),
    ...processFamilies(),
  ];
}

function archiveFamilies(archive: ArchiveStats): Family[] {
  return [
    gauge(
      `${OWN}_archive_pending_bytes`,
      "Sealed, and not in the archive yet.",
      archive.pendingBytes,
    ),
    gauge(
      `${OWN}_archive_failing`,
      "1 while requests to the archive fail.",
      Number(archive.failing),
    ),
  ];
}

function diskFamilies(disk: NonNullable<StatsReply["disk"]>): Family[] {
  return [
    gauge(`${OWN}_durable_records`, "Records that survive a power failure.", disk.durableRecords),
    gauge(`${OWN}_durable_bytes`, "Their bytes.", disk.durableBytes),
    gauge(`${OWN}_disk_queue_bytes`, "Records waiting to be written.", disk.queuedBytes),
    gauge(
      `${OWN}_disk_recovering`,
      "1 while segments of the run before are read.",
      Number(disk.recovering),
    ),
    gauge(`${OWN}_disk_failing`, "1 while the disk takes nothing.", Number(disk.failing)),
  ];
}
