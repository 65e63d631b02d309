// Owns what each counter counts, in a sentence: the HELP text of its family.
import type { SIDECAR_COUNTERS, VAULT_COUNTERS } from "../metrics.ts";

/** By the counter's name; a counter without a sentence does not compile. */
export const SIDECAR_HELP: Readonly<Record<(typeof SIDECAR_COUNTERS)[number], string>> = {
  engines_connected: "Engines that have connected.",
  engines_gone: "Engines whose last connection has ended.",
  frames_refused: "Messages of a shim that could not be read or were not allowed.",
  peers_refused: "Connections to the local socket that were turned away.",
  arenas_unmapped: "Workers that could not map their engine's shared memory.",
  prefetch_requests: "Requests whose blocks an engine asked for.",
  plans_beyond_arena:
    "Of those, the ones of which only the beginning could be restored, because shared memory cannot hold what is held of them.",
  handoffs: "Of those, the ones for prompts that another engine handed over.",
  handoffs_late:
    "Of those, the ones of which not everything came in time; what did was restored, the rest computed.",
  receipts_written: "Restores that a signed receipt was written for.",
  receipts_dropped:
    "Receipts that were not written: too many at once, or the folder [receipts] dir cannot be written.",
  handoff_wait_us: "Seconds that they waited until everything was there, or was late.",
  handoff_blocks_early: "Blocks of theirs whose fetch began before everything was there.",
  handoff_blocks_cut: "Blocks that were cut from records of an engine with longer ones.",
  handoff_records_cut: "Records of longer blocks that were cut into an engine's own.",
  handoff_records_uncut:
    "Records of longer blocks that did not come, or were not sound; their blocks are computed.",
  plans_cut:
    "Of those, the ones of which only the beginning was looked up, because they were too long.",
  lookup_keys: "Blocks of engines' requests that were looked up in memory and vaults.",
  lookup_hits: "Of those, the blocks that were held.",
  blocks_restored_vault: "Blocks that engines took over from a vault.",
  blocks_restored_local: "Blocks that engines took over from the sidecar's own arenas.",
  blocks_restored_shared: "Blocks that engines took over from memory that sidecars share.",
  bytes_restored: "Decoded bytes of the blocks that engines took over.",
  bytes_fetched: "Record bytes that vaults sent.",
  blocks_encoded_ahead: "Blocks made into records before a connection was free to send them.",
  blocks_saved: "Blocks that a vault took.",
  bytes_saved: "Decoded bytes of those blocks.",
  bytes_sent: "Record bytes of those blocks.",
  saves_present: "Blocks that were not sent because the vault held them.",
  saves_held_back: "Times saves waited so that a restore could have the link.",
  copies_missing: "Blocks in arenas that their vault was found not to hold.",
  copies_offered: "Of those, the ones that were offered again and are held now.",
  copies_sent_bytes: "Record bytes of blocks that were offered again.",
  shared_saved: "Records for a vault that memory of this machine took, too.",
  shared_present: "Records for a vault that memory of this machine had already.",
  shared_dropped: "Records for a vault that memory of this machine did not take.",
  replicas_saved: "Second copies that another vault took.",
  replicas_present: "Second copies that another vault had already.",
  replicas_sent_bytes: "Record bytes of second copies.",
  parity_saved: "Parity records that a vault took.",
  parity_present: "Parity records that a vault had already.",
  parity_sent_bytes: "Record bytes of parity records.",
  parity_incomplete:
    "Parity records that were not made: a block of theirs did not come, was stored by somebody else, or no vault was left for it.",
  parity_dropped: "Parity records that were made and not stored.",
  blocks_rebuilt: "Blocks that were rebuilt from the others of their stripes.",
  rebuilds_failed: "Blocks that could not be rebuilt, and were computed.",
  replicas_dropped:
    "Second copies that were given up: no other vault was up, or saves needed the room.",
  blocks_failed_over: "Blocks that one vault did not give and another was asked for.",
  bad_records: "Records from vaults that did not verify.",
  records_unopened: "Sealed records that none of this machine's keys opens.",
  fetch_stalls: "Fetches given up because no byte arrived for [restore] stall_ms.",
  fetches: "Fetches.",
  stores: "Stores.",
  fetch_busy_us: "Seconds in which record bytes came from a vault.",
  store_busy_us: "Seconds in which record bytes went to a vault.",
  reclaims: "Times an engine was asked to give back slots of an unfinished restore.",
  namespaces_quarantined:
    "Names under which an engine found stored blocks that are not what it computes.",
  audits: "Questions of engines that publish events whether vaults still hold blocks.",
  vault_errors: "Calls to vaults that failed.",
  listings_refused: "Entries of a pool's list that its key did not sign.",
  local_vault_restarts: "Times this machine's own vault was started again.",
  flushes: "Flushes of a vault that took something this sidecar may hold.",
  flushed_blocks: "Blocks dropped from arenas because a vault flushed them.",
  spans_sent: "Spans that the collector at [sidecar] otlp_endpoint took.",
  spans_dropped: "Spans that it did not take, or that were too many to wait for it.",
  session_tells: "Requests that named their session, which vaults are told of.",
  session_tells_dropped: "Requests of which vaults were not told, because they are told of many.",
  session_tells_failed: "Calls about sessions that a vault did not take.",
};

export const VAULT_HELP: Readonly<Record<(typeof VAULT_COUNTERS)[number] | DiskCounter, string>> = {
  connections_refused: "Connections beyond the limit of open ones.",
  hellos: "Greetings of clients.",
  lookups: "Look-ups of engines.",
  lookup_keys: "Keys of those look-ups.",
  lookup_hits: "Of those, the keys whose record was held.",
  stores: "Calls that offered records.",
  stores_ended_early: "Of those, the ones that the client or a deadline cut.",
  offered: "Records that were offered.",
  present: "Offered records that were held already.",
  stored: "Records that were taken.",
  stored_bytes: "Their bytes.",
  fetches: "Calls that asked for records.",
  fetches_ended_early: "Of those, the ones that the client or a deadline cut.",
  fetched: "Records that were sent.",
  fetched_bytes: "Their bytes.",
  fetch_missing: "Records that were asked for and not held.",
  reports: "Calls in which a client said that records did not verify.",
  reported: "Records named in those calls.",
  demoted: "Records that were moved to where eviction begins.",
  keeps_refused: "Records of kept sessions that [vault] kept_percent had no room for.",
  sessions_released: "Sessions that were over, so that their records go first.",
  sessions_expired: "Sessions whose time to be kept ran out.",
  quarantined: "Records that did not verify here either, and went.",
  evicted: "Records that made room for others.",
  evicted_bytes: "Their bytes.",
  flushes: "Calls that dropped records.",
  calls_refused: "Calls that were answered with an error.",
  calls_unauthenticated: "Calls without a valid token or certificate.",
  calls_denied: "Calls whose token lacks the role.",
  peers_limited: "Connections of addresses that failed to identify themselves too often.",
  listings_refused: "Entries of a pool's list that its key did not sign.",
  lanes_refused: "Lanes that were turned away.",
  tls_refused: "TLS handshakes that failed.",
  probes: "Probes of a link with bytes that are no record.",
  probed_bytes: "Their bytes.",
  spans_sent: "Spans that the collector at [vault] otlp_endpoint took.",
  spans_dropped: "Spans that it did not take, or that were too many to wait for it.",
  disk_written: "Records that were written to disk.",
  disk_written_bytes: "Their bytes.",
  disk_file_bytes: "Bytes written to segment files, headers and moved records included.",
  disk_read: "Records that were read from disk.",
  disk_read_bytes: "Their bytes.",
  disk_missed: "Records in the disk's index that could not be read.",
  disk_skipped: "Records that memory alone keeps because the disk's queue was full or writes fail.",
  disk_evicted: "Records on disk that made room for others.",
  disk_moved: "Records that moved to another segment before theirs was reused.",
  disk_expired: "Records on disk that were older than [vault] disk_ttl_s.",
  disk_scrubbed_bytes: "Bytes on disk that were read again to verify them.",
  disk_alarms: "Disk operations that failed.",
  disk_syncs_failed: "Of those, the syncs: what they covered counts as lost.",
  archive_sent_bytes: "Bytes of segments that went to the archive, and tries that failed.",
  archive_read: "Records that were read from the archive.",
  archive_read_bytes: "Their bytes.",
  archive_removed: "Records that went because the archive had [vault] archive_bytes.",
  archive_failures: "Requests to the archive that failed.",
};

/** Counted by the store, of a vault with a disk; those of an archive where there is one. */
type DiskCounter =
  | "disk_written"
  | "disk_written_bytes"
  | "disk_file_bytes"
  | "disk_read"
  | "disk_read_bytes"
  | "disk_missed"
  | "disk_skipped"
  | "disk_evicted"
  | "disk_moved"
  | "disk_expired"
  | "disk_scrubbed_bytes"
  | "disk_alarms"
  | "disk_syncs_failed"
  | "archive_sent_bytes"
  | "archive_read"
  | "archive_read_bytes"
  | "archive_removed"
  | "archive_failures";
