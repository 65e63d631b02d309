//! Owns every limit of the core, each with the reason for its size.

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Slots are whole pages, so that a slot is mapped, allocated and touched without its neighbours.
pub const SLOT_ALIGN_BYTES: usize = 4 * KIB;

/// Largest page of one block (attention) or one state (recurrent): many times what today's models need.
pub const PAGE_BYTES_MAX: usize = 512 * MIB;

/// Slots of one arena; the table costs 16 bytes of memory for each.
pub const SLOT_COUNT_MAX: u32 = 1 << 20;

/// Head vectors of one layer in a geometry; each is checked at registration.
pub const VECTORS_PER_LAYER_MAX: u64 = 1 << 21;

/// Encoded records waiting to be sent, all engines of the process together.
pub const OUTBOX_BYTES_MAX: usize = 1024 * MIB;

/// Records that are still arriving, all engines of the process together.
pub const INBOX_BYTES_MAX: usize = 1024 * MIB;

/// Decoded records of longer blocks being cut into shorter ones: one of the largest pages, and the records it came from.
pub const RECUT_BYTES_MAX: usize = 1024 * MIB;

/// Freed buffers kept for reuse, in each of outbox and inbox, to avoid page faults of new memory.
pub const POOL_IDLE_BYTES_MAX: usize = 64 * MIB;

/// Smallest buffer of outbox and inbox with a mapping of its own, so that freed memory returns to the system at once. Ten
/// thousands of smaller ones would exceed a process's mappings.
pub const POOL_MAPPED_BYTES_MIN: usize = 128 * KIB;

/// Address space of a pool whose memory is lent, as a multiple of its limit, so that there is room between buffers of all lengths.
pub const POOL_SPACE_TIMES: usize = 2;

/// Payload bytes copied before they are checksummed; they must still be in the L1 cache.
pub const CHECKSUM_SPAN_BYTES: usize = 16 * KIB;

/// Smallest block decoded past the cache, because an arena exceeds any cache and another core or the GPU reads the block
/// next.
pub const STREAM_BYTES_MIN: usize = 128 * KIB;

/// Smallest budget of a store: a few records and their index must fit.
pub const STORE_BYTES_MIN: u64 = MIB as u64;

/// Smallest whole-page memory of a record that is kept for reuse within the budget; the allocator itself keeps smaller ones.
pub const STORE_SPARE_BYTES_MIN: usize = 32 * KIB;

/// Address space of a store, as a multiple of its budget, so that runs of pages are found between records of all lengths.
pub const STORE_SPACE_TIMES: u64 = 4;

/// Record size from which the store estimates how many evicted keys to remember.
pub const STORE_RECORD_BYTES_TYPICAL: u64 = 256 * KIB as u64;

/// Evicted keys remembered at most; each costs 24 bytes.
pub const STORE_GHOSTS_MAX: u64 = 1 << 20;

/// Flushes a store remembers to refuse records made before them; each costs 56 bytes. Records made before all of them are refused.
pub const STORE_FLUSHES_MAX: usize = 4096;

/// Within one to two spans of this length new records may take a quarter of a full store instead of a tenth.
pub const STORE_SPARED_MS: u64 = 60_000;

/// Tenants of one account in a store, 120 bytes each; further tenants share the quota of the account's own records.
pub const STORE_TENANTS_MAX: usize = 4096;

/// Tenants of all accounts, not counting each account's own.
pub const STORE_TENANTS_ALL_MAX: usize = 16_384;

/// Records of one tenant evicted before all tenants are compared again, which costs 10 us where there are many.
pub const TENANT_EVICTIONS_MAX: u32 = 32;

/// Keys of all sessions of a store: 16 million tokens in blocks of 16.
pub const SESSION_KEYS_MAX: usize = 1 << 20;

/// Memory of a session's key, in its set and in the map of wanted keys, both at their emptiest.
pub const SESSION_KEY_BYTES: u64 = 340;

/// Keys looked up at a time; the memory read for them must fit a core's own cache.
pub const STORE_LOOKUP_KEYS: usize = 256;

/// Records that are looked at in one turn with the store's lock while the disk catches up.
pub const STORE_TURN_KEYS: usize = 64;

/// Pause after such a turn, in us. Without it the thread has the lock again before one that waits for it has woken.
pub const STORE_TURN_PAUSE_US: u64 = 100;

/// Pieces of 1,024 entries that a scan visits under one lock: about 0.2 ms.
pub const STORE_SCAN_PIECES: usize = 8;

/// Records on a page of a store's listing; as many headers may have to be read from disk or archive.
pub const STORE_LIST_MAX: usize = 1024;

/// Records of a page looked up under one lock, and read from disk or archive together.
pub const STORE_LIST_BATCH: usize = 256;

/// Headers of a listing read at the same time: a hard disk sorts them, an archive answers them side by side.
pub const STORE_LIST_READS: usize = 32;

/// Time in ms after which a page ends early, because the disk or archive is slow; well below a caller's deadline.
pub const STORE_LIST_MS: u64 = 2_000;

/// Keys that a listing finds in one scan of both tiers, 68 bytes each; a scan per page would take a second per million records.
pub const STORE_LIST_AHEAD: usize = 65_536;

/// Listings under way whose keys are kept; the one used longest ago scans again.
pub const STORE_LISTINGS_MAX: usize = 4;

/// Objects of one kind that JavaScript may hold open: reservations, pins, records in the outbox.
pub const IDS_MAX: usize = 1 << 20;

/// Record bytes of one chunk, and of one write of a lane: large enough to amortise framing, small enough that a cancelled
/// request stops soon.
pub const LANE_CHUNK_BYTES: usize = MIB;

/// Busy time of a link after which older measurements count for a third.
pub const GOODPUT_MEMORY_MS: f64 = 150.0;

/// Weight of the measured rate against open transfers, in busy time.
pub const GOODPUT_PRIOR_MS: f64 = 60.0;

/// Bytes within this time of the last ones belong to the same burst.
pub const GOODPUT_GAP_MS: f64 = 2.0;

/// Fewer bytes do not measure a rate, unless a transfer was given up after more than `GOODPUT_PRIOR_MS`.
pub const GOODPUT_SAMPLE_BYTES_MIN: f64 = 4096.0;

/// Shortest time of a measurement, because the waiting subtracted from it is an estimate.
pub const GOODPUT_SPAN_MIN_MS: f64 = 0.02;

/// Size of a whole transfer that proves that a link has become faster.
pub const GOODPUT_BURST_BYTES_MIN: f64 = 262_144.0;

/// Chunks of one write of a lane: small records share one system call.
pub const LANE_BATCH_FRAMES: usize = 64;

/// Body of any other frame; `LANE_KEYS_MAX` keys with their lengths fit.
pub const LANE_CONTROL_BYTES_MAX: usize = 192 * KIB;

/// Keys of one look-up, fetch or offer: a 64k-token prompt in blocks of 16.
pub const LANE_KEYS_MAX: usize = 4096;

/// Chunks of one probe.
pub const LANE_PROBE_CHUNKS_MAX: u32 = 256;

/// Lanes of one session.
pub const LANES_MAX: usize = 8;

/// Network paths that lanes are spread over: pairs of a local and a vault's address.
pub const RAILS_MAX: usize = 4;

/// Interval at which a waiting lane checks its rail for silence, with several rails.
pub const RAIL_TICK_MS: u64 = 30;

/// Silence during open requests after which a lane asks the vault whether it is alive.
pub const RAIL_ASK_MS: u64 = 40;

/// Silence after which a rail counts as cut, while another one brings bytes.
pub const RAIL_SILENT_MS: u64 = 150;

/// Longest connect of a new lane on one of several rails, because the rail was tried before.
pub const RAIL_DIAL_MS: u64 = 400;

/// Send buffer of a lane on one of several rails, small because no faster rail can take over what a slow one has buffered.
pub const RAIL_SOCKET_BYTES: usize = 128 * KIB;

/// Nice increment of a thread that only encodes and sends stores, because an engine beside it goes first.
pub const LANE_STORING_NICE: i32 = 10;

/// Record length in the chunk of an offered record that could not be made.
pub const LANE_NO_RECORD_BYTES: usize = 1;

/// Bytes of records that stand on one lane until its peer has read them: two of the usual size, so that the peer need not wait,
/// and no lane has the work of others.
pub const LANE_STANDING_BYTES_MAX: usize = 4 * MIB;

/// Lanes of a session, its first ones, that carry stores; requests use the others, so that none waits behind a store.
pub const LANES_STORING_MAX: usize = 2;

/// Lane connections per vault: 128 clients with four lanes each; each costs two threads.
pub const LANE_CONNECTIONS_MAX: usize = 512;

/// Admitted connections at a vault's listener, lanes and gRPC: 128 clients with four lanes each, and as many others.
pub const LISTENER_SETTLED_MAX: usize = 768;

/// Admitted connections of one address: half, so that no address locks the others out.
pub const LISTENER_SETTLED_EACH_MAX: usize = 384;

/// Connections not admitted yet at the listener, of unknown addresses, and as many of known ones.
pub const LISTENER_WAITING_MAX: usize = 256;

/// Connections not admitted yet, of one address; the longest waiting one gives way to the next.
pub const LISTENER_WAITING_EACH_MAX: usize = 128;

/// Admitted connections above `LISTENER_SETTLED_MAX` for addresses that were admitted before.
pub const LISTENER_RESERVE: usize = 128;

/// Addresses remembered as admitted before.
pub const LISTENER_KNOWN_MAX: usize = 4096;

/// From a connection's first packet until it is admitted: handshake, hello, first call.
pub const LISTENER_DEADLINE_MS: u64 = 5_000;

/// First bytes looked at; a client's TLS hello with larger future keys fits.
pub const LISTENER_FIRST_BYTES_MAX: usize = 16 * KIB;

/// Connections that the system queues until they are accepted.
pub const LISTENER_BACKLOG: i32 = 1024;

/// Connections accepted before the present ones are served.
pub const LISTENER_ACCEPTS_PER_POLL: usize = 64;

/// Incomplete handshake messages of a peer; a long chain of certificates fits.
pub const LANE_HANDSHAKE_BYTES_MAX: usize = 64 * KIB;

/// TLS records sealed with one key: half of the limit of AES-GCM, 128 GiB.
pub const LANE_KEY_RECORDS_MAX: u64 = 1 << 23;

/// Open requests of one session.
pub const LANE_REQUESTS_MAX: usize = 64;

/// Record bytes reserved by the open offers of one session; one record of the largest size fits.
pub const LANE_OFFERED_BYTES_MAX: u64 = 512 * MIB as u64;

/// Unsent answers of one session; above it the session reads no further requests.
pub const LANE_ANSWERS_BYTES_MAX: usize = 64 * KIB;

/// Records of one session that are read from disk ahead of the lanes; a fast disk gains little from more.
pub const DISK_READS_AHEAD: usize = 8;

/// The same from an archive, whose reads wait for a network most of their time.
pub const ARCHIVE_READS_AHEAD: usize = 32;

/// Divisor of a store's memory: that share may be read ahead of the lanes, because it cannot be evicted until it is sent.
pub const READ_AHEAD_SHARE: u64 = 8;

/// Threads that read from disk for all sessions: eight sessions with all their reads.
pub const DISK_READERS_MAX: usize = 64;

/// Threads that read from an archive for all sessions; they mostly wait.
pub const ARCHIVE_READERS_MAX: usize = 128;

/// Time without a read after which such a thread ends, in ms.
pub const READERS_IDLE_MS: u64 = 10_000;

/// Memory reserved for the open requests of each session, besides records: a fetch and an offer of 512 records.
pub const LANE_KEPT_EACH_BYTES: usize = 128 * KIB;

/// Memory shared by the requests of all sessions beyond that: the keys of a hundred fetches of `LANE_KEYS_MAX`.
pub const LANE_KEPT_BYTES_MAX: usize = 16 * MIB;

/// Issued tokens that are not used yet; above it the oldest is dropped.
pub const LANE_TOKENS_MAX: usize = 1024;

/// Spans of traced requests that were not collected yet.
pub const LANE_SPANS_MAX: usize = 2048;

/// Validity of a token.
pub const LANE_TOKEN_MS: u64 = 10_000;

/// Time for a new lane to connect, and to send hello or get its welcome.
pub const LANE_HELLO_MS: u64 = 2_000;

/// Time for a begun frame to arrive, and for a peer to take a write: at least 100 KB/s.
pub const LANE_STALL_MS: u64 = 10_000;

/// Time without a byte after which an offer is given up and its room freed.
pub const LANE_STORE_IDLE_MS: u64 = 10_000;

/// Interval at which a waiting lane checks whether it must end.
pub const LANE_TICK_MS: u64 = 250;

/// Silence of a peer, when a request is given up, after which its session counts as dead.
pub const LANE_SILENT_MS: u64 = 400;

/// Idle time of TCP keepalive; the kernel finds a peer dead after about three times this.
pub const LANE_KEEPALIVE_S: u64 = 20;

/// Longest time in ms in which requests go on once the vault has closed one of the lanes: it closes all, and bytes that it sent on
/// others may not have been read yet.
pub const LANE_CLOSING_MS: u64 = 250;

/// Pause in ms between looks at such requests.
pub const LANE_CLOSING_POLL_MS: u64 = 2;

/// Bytes received, checked and decoded at once; they must still be in the L2 cache.
pub const LANE_STEP_BYTES: usize = 128 * KIB;

/// Buffer of a lane's socket, each way, where the system allows that much: 25 Gb/s over 1 ms.
pub const LANE_SOCKET_BYTES: usize = 4 * MIB;

/// Keys that can open records at the same time: the sealing key and earlier ones.
pub const SEAL_KEYS_MAX: usize = 8;

/// Records sealed with one derived key: the limit of GCM with random nonces, kept although these are counted.
pub const SEAL_EPOCH_RECORDS_MAX: u64 = 1 << 32;

/// Smallest durable tier: eight segments of eight pages.
pub const DISK_BYTES_MIN: u64 = 256 * KIB as u64;

/// Bytes of a segment: large enough that footer and sync cost little, small enough to be evicted whole.
pub const DISK_SEGMENT_BYTES: u64 = 128 * MIB as u64;

/// Fewest segments of a durable tier, so that each eviction takes a small share of it.
pub const DISK_SEGMENTS_MIN: u64 = 8;

/// Segments kept free: one being written, one being removed.
pub const DISK_RESERVE_SEGMENTS: u64 = 2;

/// Divisor of a segment's bytes: that share may move on eviction, so that eviction gains room.
pub const DISK_MOVED_SHARE: u64 = 4;

/// Records of one write and one sync; larger groups make a sync no cheaper per byte.
pub const DISK_GROUP_BYTES: u64 = 16 * MIB as u64;

/// Time the first record of a group waits for more, in ms: about the time of a sync.
pub const DISK_GROUP_MS: u64 = 10;

/// Records queued for writing, which cannot be evicted from memory meanwhile.
pub const DISK_QUEUE_BYTES_MAX: u64 = 1024 * MIB as u64;

/// Pause in ms before a segment that cannot be read is tried again: at most this long, after pauses that double.
pub const DISK_REREAD_MAX_MS: u64 = 600_000;

/// Namespaces of one durable tier; records of further ones stay in memory only, and the vault names them.
pub const DISK_NAMESPACES_MAX: usize = 1 << 16;

/// Open files left to connections and all else, of those that the system allows the process; at most half of the allowed number.
pub const DISK_FILES_LEFT: u64 = 4_096;

/// Segments open for reading at the same time, whatever the system allows.
pub const DISK_FILES_MAX: usize = 1 << 16;

/// Size of the tombstones file above which it is rewritten without obsolete tombstones.
pub const DISK_TOMBSTONES_FILE_BYTES: u64 = MIB as u64;

/// Pause before a failed disk is tried again, in ms.
pub const DISK_RETRY_MS: u64 = 1_000;

/// Time in ms for which other programs may fill the disk before the oldest segments go, so that an accident costs no durable record.
pub const DISK_FULL_PATIENCE_MS: u64 = 60_000;

/// Time of a read, in ms, above which the disk counts as hanging, and no other caller waits for it.
pub const DISK_STALL_MS: u64 = 2_000;

/// Time a caller waits for a record to become durable, in ms.
pub const DISK_SYNC_WAIT_MS: u64 = 5_000;

/// Segments of the previous run read in parallel.
pub const DISK_RECOVERY_THREADS: usize = 4;

/// Bytes read again per second in the background: a terabyte in three days.
pub const DISK_SCRUB_BYTES: u64 = 4 * MIB as u64;

/// Bytes of a segment that is archived, as one object.
pub const ARCHIVE_SEGMENT_BYTES: u64 = 64 * MIB as u64;

/// Bytes of an object in memory during its upload; S3 takes parts of 5 MiB and more.
pub const ARCHIVE_PART_BYTES: u64 = 8 * MIB as u64;

/// Longest pause after a part, in ms: uploads pause as long as a part took, so that restores have half of the time.
pub const ARCHIVE_REST_MS: u64 = 2_000;

/// Longest pause before a failed archive is tried again, in ms; the first pause is that of a disk.
pub const ARCHIVE_RETRY_MAX_MS: u64 = 30_000;

/// Time of a read, in ms, above which the archive counts as hanging, and no other caller waits for it.
pub const ARCHIVE_STALL_MS: u64 = 5_000;

/// Reads from an archive that its pace averages.
pub const ARCHIVE_PACE_READS: f64 = 16.0;

/// Half-life of an archive's pace without a read.
pub const ARCHIVE_PACE_FADE_MS: f64 = 300_000.0;

/// Time to connect to an archive, in ms.
pub const ARCHIVE_CONNECT_MS: u64 = 3_000;

/// Time of one request to an archive, in ms: a part on a link of 3 Mb/s.
pub const ARCHIVE_REQUEST_MS: u64 = 30_000;

/// Requests to an archive at the same time whose connections stay open: as many as read ahead.
pub const ARCHIVE_CONNECTIONS: usize = 32;

/// Time before credentials for an archive expire at which they are renewed, in ms; a third of a shorter life.
pub const CREDENTIALS_MARGIN_MS: u64 = 300_000;

/// Interval in ms at which a file of credentials is read again, because other programs renew it.
pub const CREDENTIALS_FILE_MS: u64 = 60_000;

/// Pause in ms before credentials that could not be renewed, but are still good, are asked for again.
pub const CREDENTIALS_RETRY_MS: u64 = 10_000;

/// Time of one request for credentials, in ms.
pub const CREDENTIALS_REQUEST_MS: u64 = 5_000;

/// Time a flush waits for its archive to learn of it, in ms.
pub const ARCHIVE_NOTE_WAIT_MS: u64 = 4_000;

/// Each file beside the segments in an archive: tombstones, flushes, names of models.
pub const ARCHIVE_BESIDE_BYTES: u64 = 64 * MIB as u64;

/// Divisor of the time to live: a segment is closed after that part, by which its last records may expire early.
pub const DISK_TTL_STEPS: u32 = 8;

/// Threads that move records from a shared region to arenas, and as many for the other direction: one is bound by its
/// copying, more by memory.
pub const SHM_THREADS_MAX: usize = 4;

/// Shared regions mapped by one process.
pub const SHM_MAPPINGS_MAX: usize = 64;

/// Time that opening a shared region waits for its lock, in ms.
pub const SHM_OPEN_LOCK_MS: u64 = 5_000;

/// Places of a shared region's index that a look-up or an insertion reads at most; half of the places are free.
pub const SHM_PROBES_MAX: u64 = 1024;

/// Records that a search for room in a shared region looks at in one turn with the lock, so that it takes a few ms at most.
pub const SHM_EVICT_LOOKS_MAX: u64 = 4096;

/// Part of a region, one in so many, whose records came last and are evicted only if nothing else can be.
pub const SHM_YOUNG_SHARE: u64 = 8;

/// Turns with the lock for one search for room.
pub const SHM_EVICT_TURNS_MAX: u64 = 32;

/// Interval at which a process that waits for a shared region's lock checks whether its owner lives, in ms.
pub const SHM_LOCK_LOOK_MS: u64 = 5;

/// Interval of a host's heartbeat in the lock between hosts, in ms.
pub const SHM_BEAT_MS: u64 = 50;

/// Time after its last heartbeat for which a host writes under the lock, in ms; less than others wait.
pub const SHM_LEASE_MS: u64 = 400;

/// Silence after which a host, or the lock's manager, counts as dead, in ms; others go on within a second.
pub const SHM_SILENT_MS: u64 = 600;

/// Threads per direction for a shared region where processors are few, because one would leave half of two idle while an engine waits.
pub const SHM_THREADS_MIN: usize = 2;

/// Bytes of a shared region mapped at once, because other changes of the process's memory map wait meanwhile.
pub const SHM_POPULATE_BYTES: u64 = 2 * MIB as u64;

/// Requests queued for a shared region's threads; further ones wait at their origin.
pub const SHM_REQUESTS_MAX: usize = 1024;

/// Bytes that `tierkv doctor --shm` measures with: more than the caches of one core hold.
pub const SHM_DOCTOR_BYTES: u64 = 64 * MIB as u64;

/// Rounds of each trial of `tierkv doctor --shm`.
pub const SHM_DOCTOR_ROUNDS: u64 = 500;

/// Time one of its two processes waits for the other to come, in ms.
pub const SHM_DOCTOR_PEER_MS: u64 = 120_000;

/// Time it waits for a reply, in ms, because the other's processor may be busy.
pub const SHM_DOCTOR_REPLY_MS: u64 = 10_000;

/// Time after which a published value counts as not seen, in ms.
pub const SHM_DOCTOR_UNSEEN_MS: u64 = 20;

/// Bytes of a shared region's chunk: a record wastes half of one, and each costs 264 bytes of index.
pub const SHM_CHUNK_BYTES: u64 = 16 * KIB as u64;

/// Requests queued for the threads of a store that others run; further ones are refused.
pub const COLD_REQUESTS_MAX: usize = 1024;

/// Threads for look-ups in such a store; each request may use further ones for its parts.
pub const COLD_LOOKUP_THREADS: usize = 2;

/// Threads for fetches from such a store.
pub const COLD_FETCH_THREADS: usize = 4;

/// Threads for saves into such a store.
pub const COLD_STORE_THREADS: usize = 2;

/// Connections to one node of Valkey that stay open for the next request: as many as all threads of the store use at once.
pub const VALKEY_IDLE_MAX: usize = COLD_FETCH_THREADS + COLD_STORE_THREADS + COLD_LOOKUP_THREADS;

/// Records that one command asks a server for, where it alone has all of them.
pub const VALKEY_EXISTS_KEYS: usize = 64;

/// Nodes of a Valkey cluster.
pub const VALKEY_NODES_MAX: usize = 1024;

/// Longest line of an answer of Valkey.
pub const VALKEY_LINE_BYTES_MAX: usize = 4 * KIB;

/// Answers of a node that are read at once; a record's bytes behind them go to its slot directly.
pub const VALKEY_BUFFER_BYTES: usize = 16 * KIB;

/// Redirections to another node that one request follows.
pub const VALKEY_REDIRECTS_MAX: usize = 3;

/// Time to connect to a node of Valkey and to log in, in ms; less where a request ends earlier.
pub const VALKEY_DIAL_MS: u64 = 2_000;

/// Interval at which a waiting connection checks whether its request has ended, in ms.
pub const VALKEY_TICK_MS: u64 = 20;

/// Pause in ms before a cluster is asked for its slots again.
pub const VALKEY_SLOTS_EVERY_MS: u64 = 200;

/// Time in ms for which a node of a cluster that did not answer is not asked; then one request tries it.
pub const VALKEY_NODE_PAUSE_MS: u64 = 1_000;

/// Time in ms without a byte after which a read goes on without a node of a cluster; below the time after which a restore counts as stalled.
pub const VALKEY_NODE_SILENT_MS: u64 = 250;

/// Copies of the list of flushes in Valkey, in different thirds of the slots; most of them must answer.
pub const VALKEY_FLUSH_COPIES: usize = 3;

/// Flushes that the list in Valkey names; the next one drops everything and begins it anew.
pub const VALKEY_FLUSHES_MAX: usize = 256;

/// Bytes of one flush in that list.
pub const VALKEY_FLUSH_BYTES_MAX: usize = 1024;

/// Models that a client of Valkey knows by name for one namespace, and namespaces that it knows them of.
pub const VALKEY_MODELS_MAX: usize = 1024;

/// Pause in ms before the models that other clients have named are read again.
pub const VALKEY_MODELS_EVERY_MS: u64 = 5_000;

/// Times that a look-up begins again after a flush.
pub const VALKEY_FLUSH_ROUNDS_MAX: usize = 4;

/// Requests to a bucket at the same time for one look-up, fetch or save.
pub const S3_REQUESTS_MAX: usize = 16;

/// Objects written to a bucket at the same time for one save; each is put together in memory.
pub const S3_WRITES_MAX: usize = 4;

/// Records of one object; its index then fits `S3_INDEX_BYTES`.
pub const S3_OBJECT_RECORDS_MAX: usize = 64;

/// Bytes of an object at which it is closed.
pub const S3_OBJECT_BYTES: u64 = 16 * MIB as u64;

/// Bytes at the front of an object that are read to learn its records.
pub const S3_INDEX_BYTES: u64 = 4 * KIB as u64;

/// Bytes of one range of an object, unless a record is longer.
pub const S3_RANGE_BYTES: u64 = 4 * MIB as u64;

/// Rounds of requests in which a look-up follows the objects of a run.
pub const S3_ROUNDS_MAX: usize = 16;

/// Places of records that are remembered; above it the oldest are dropped. Each takes about 200 bytes.
pub const S3_PLACES_MAX: usize = 1 << 17;
