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
    help: "Records refused, by status.",
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
    gauge(`${OWN}_info`, "Version of the running vault; the value is always 1.", [
      { labels: { version: stats.version }, value: 1 },
    ]),
    gauge(
      `${OWN}_uptime_seconds`,
      "Time since the vault started, in seconds.",
      stats.uptimeMs / 1000,
    ),
    gauge(
      `${OWN}_bytes_max`,
      "Capacity of each tier, in bytes.",
      tiers(stats.maxBytes, disk?.maxBytes, archive?.maxBytes),
    ),
    gauge(
      `${OWN}_bytes_used`,
      "Bytes in use in each tier.",
      tiers(stats.usedBytes, disk?.usedBytes, archive?.usedBytes),
    ),
    gauge(
      `${OWN}_bytes_reserved`,
      "Memory of records that are still arriving, in bytes.",
      stats.reservedBytes,
    ),
    gauge(
      `${OWN}_bytes_spare`,
      "Memory of removed records, reused for new ones, in bytes.",
      stats.spareBytes,
    ),
    gauge(`${OWN}_bytes_kept`, "Memory of records that sessions keep, in bytes.", stats.keptBytes),
    gauge(`${OWN}_sessions`, "Known sessions.", stats.sessions),
    gauge(`${OWN}_records`, "Records in each tier.", tiers(stats.records, disk?.records)),
    gauge(`${OWN}_namespaces`, "Namespaces with records in memory.", stats.namespaces),
    gauge(
      `${OWN}_insecure_lan`,
      "1 if other machines can connect without TLS and token.",
      Number(isOpenToAll),
    ),
    gauge(`${OWN}_lanes`, "Open lanes.", stats.lanes),
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
      "Bytes of sealed segments not yet in the archive.",
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
    gauge(
      `${OWN}_durable_bytes`,
      "Bytes of records that survive a power failure.",
      disk.durableBytes,
    ),
    gauge(
      `${OWN}_disk_queue_bytes`,
      "Bytes of records waiting to be written to disk.",
      disk.queuedBytes,
    ),
    gauge(
      `${OWN}_disk_recovering`,
      "1 while the vault reads segments of its previous run.",
      Number(disk.recovering),
    ),
    gauge(`${OWN}_disk_failing`, "1 while writes to the disk fail.", Number(disk.failing)),
  ];
}
