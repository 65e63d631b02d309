//! Owns every limit of the core, each with the reason for its size.

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Slots are whole pages, so that a slot is mapped, allocated and touched without its neighbours.
pub const SLOT_ALIGN_BYTES: usize = 4 * KIB;

/// Largest page of one block (attention) or one state (recurrent): many times what models of today need.
pub const PAGE_BYTES_MAX: usize = 512 * MIB;

/// Slots of one arena; the table costs 16 bytes of memory for each.
pub const SLOT_COUNT_MAX: u32 = 1 << 20;

/// Head vectors of one layer that a geometry may describe; each is checked at registration.
pub const VECTORS_PER_LAYER_MAX: u64 = 1 << 21;

/// Encoded records waiting to be sent, all engines of the process together.
pub const OUTBOX_BYTES_MAX: usize = 1024 * MIB;

/// Records in the middle of arriving, all engines of the process together.
pub const INBOX_BYTES_MAX: usize = 1024 * MIB;

/// Records that are put together by XOR: stripes that are not complete yet, and members that are being rebuilt.
pub const PARITY_BYTES_MAX: usize = 256 * MIB;

/// Records of one stripe.
pub const PARITY_WIDTH_MAX: usize = 4;

/// Records of longer blocks that are being cut into shorter ones, decoded: one of the largest pages, and what it came in.
pub const RECUT_BYTES_MAX: usize = 1024 * MIB;

/// Freed buffers kept for reuse, in each of outbox and inbox: saves the page faults of new memory.
pub const POOL_IDLE_BYTES_MAX: usize = 64 * MIB;

/// Smallest buffer of outbox and inbox that is mapped by itself: freed, it is the system's again at once. Smaller ones by
/// the ten thousand would be more mappings than a process may have.
pub const POOL_MAPPED_BYTES_MIN: usize = 128 * KIB;

/// Payload bytes copied before their checksum is taken: they must still be in the L1 cache.
pub const CHECKSUM_SPAN_BYTES: usize = 16 * KIB;

/// Smallest block that is decoded past the cache: an arena is larger than any cache, and whoever reads
/// the block next is another core or the GPU.
pub const STREAM_BYTES_MIN: usize = 128 * KIB;

/// Smallest budget of a store: a few records and their index must fit.
pub const STORE_BYTES_MIN: u64 = MIB as u64;

/// Smallest memory of a record that is whole pages, kept for the next ones within the budget: smaller ones the allocator keeps itself.
pub const STORE_SPARE_BYTES_MIN: usize = 32 * KIB;

/// Address space of a store, in budgets: so much that a run of pages is found between records of all lengths.
pub const STORE_SPACE_TIMES: u64 = 4;

/// Record size from which the store guesses how many evicted keys are worth remembering.
pub const STORE_RECORD_BYTES_TYPICAL: u64 = 256 * KIB as u64;

/// Evicted keys remembered at most; each costs 24 bytes.
pub const STORE_GHOSTS_MAX: u64 = 1 << 20;

/// Flushes a store remembers, to refuse what was made before them; each costs 56 bytes. What was made before all of them is refused.
pub const STORE_FLUSHES_MAX: usize = 4096;

/// For one to two such spans new records have up to a quarter of a full store instead of a tenth.
pub const STORE_SPARED_MS: u64 = 60_000;

/// Tenants of one account with records in a store at a time; those of further ones share the quota of the account's own records.
/// Each costs 120 bytes, and a look when somebody has to give way.
pub const STORE_TENANTS_MAX: usize = 4096;

/// Tenants of all accounts, but for what is each account's own.
pub const STORE_TENANTS_ALL_MAX: usize = 16_384;

/// Records of one tenant that are evicted before all are looked at again: looking costs 10 us where there are many.
pub const TENANT_EVICTIONS_MAX: u32 = 32;

/// Keys of all sessions of a store: 16 million tokens in blocks of 16.
pub const SESSION_KEYS_MAX: usize = 1 << 20;

/// What a key of a session costs: in its set and in the map of all that are wanted, both at their emptiest.
pub const SESSION_KEY_BYTES: u64 = 340;

/// Keys looked up at a time: what is read for them must fit a core's own cache.
pub const STORE_LOOKUP_KEYS: usize = 256;

/// Records on a page of the list of what a store holds: as many headers may have to be read from the disk.
pub const STORE_LIST_MAX: usize = 1024;

/// Objects of one kind that JavaScript may hold open: reservations, pins, records in the outbox.
pub const IDS_MAX: usize = 1 << 20;

/// Record bytes of one chunk, and of one write of a lane: large enough to amortise framing, small enough to
/// cancel within one.
pub const LANE_CHUNK_BYTES: usize = MIB;

/// Busy time of a link after which what was measured before counts for a third.
pub const GOODPUT_MEMORY_MS: f64 = 150.0;

/// How much busy time the measured rate is worth against transfers under way.
pub const GOODPUT_PRIOR_MS: f64 = 60.0;

/// Bytes that come within this time of those before belong to one burst.
pub const GOODPUT_GAP_MS: f64 = 2.0;

/// Fewer bytes say nothing of a link's rate, unless a transfer was given up after longer than `GOODPUT_PRIOR_MS`.
pub const GOODPUT_SAMPLE_BYTES_MIN: f64 = 4096.0;

/// A measurement of a link takes at least this long, because its usual wait for an answer is an estimate.
pub const GOODPUT_SPAN_MIN_MS: f64 = 0.02;

/// A whole transfer of so many bytes shows that a link has become faster.
pub const GOODPUT_BURST_BYTES_MIN: f64 = 262_144.0;

/// Chunks of one write of a lane: small records share one system call.
pub const LANE_BATCH_FRAMES: usize = 64;

/// Body of any other frame: `LANE_KEYS_MAX` keys with their lengths fit.
pub const LANE_CONTROL_BYTES_MAX: usize = 192 * KIB;

/// Keys of one look-up, fetch or offer: a 64k-token prompt in blocks of 16.
pub const LANE_KEYS_MAX: usize = 4096;

/// Chunks of one probe.
pub const LANE_PROBE_CHUNKS_MAX: u32 = 256;

/// Lanes of one session.
pub const LANES_MAX: usize = 8;

/// Ways between the two machines that lanes are spread over: pairs of a local and a vault's address.
pub const RAILS_MAX: usize = 4;

/// With several rails, how often a waiting lane looks whether its own is silent.
pub const RAIL_TICK_MS: u64 = 30;

/// A lane that heard nothing for this long while requests are open asks the vault whether it is there.
pub const RAIL_ASK_MS: u64 = 40;

/// A rail without an answer for this long, while another brings bytes, is taken for cut.
pub const RAIL_SILENT_MS: u64 = 150;

/// A new lane on one of several rails connects within this time: it was tried before.
pub const RAIL_DIAL_MS: u64 = 400;

/// Send buffer of a lane on one of several rails: what a slow one has taken, no faster one can bring.
pub const RAIL_SOCKET_BYTES: usize = 128 * KIB;

/// Nice increment of a thread that makes and sends what is stored, and nothing else: an engine beside it goes first.
pub const LANE_STORING_NICE: i32 = 10;

/// What a chunk says of its record's length when it brings none: an offered record that could not be made.
pub const LANE_NO_RECORD_BYTES: usize = 1;

/// Lanes of them, the first ones, that carry what is stored; requests go on the others, so that none waits behind it.
pub const LANES_STORING_MAX: usize = 2;

/// Lane connections one vault holds open: 128 clients with four lanes each; each costs it two threads.
pub const LANE_CONNECTIONS_MAX: usize = 512;

/// Connections that were let in at a vault's listener, lanes and gRPC: 128 clients with four lanes each, and as many others.
pub const LISTENER_SETTLED_MAX: usize = 768;

/// Those of one address: half, so that nobody keeps all others out.
pub const LISTENER_SETTLED_EACH_MAX: usize = 384;

/// Connections at the listener that were not let in yet, of strangers, and as many of addresses that are known.
pub const LISTENER_WAITING_MAX: usize = 256;

/// Those of one address; the one that waited longest gives way to the next.
pub const LISTENER_WAITING_EACH_MAX: usize = 128;

/// Places beyond `LISTENER_SETTLED_MAX` for addresses that somebody was let in from before.
pub const LISTENER_RESERVE: usize = 128;

/// Addresses that are remembered as such.
pub const LISTENER_KNOWN_MAX: usize = 4096;

/// From the first packet of a connection until it is let in: handshake, hello, first call.
pub const LISTENER_DEADLINE_MS: u64 = 5_000;

/// First bytes that are looked at: a client's TLS hello with keys of tomorrow fits.
pub const LISTENER_FIRST_BYTES_MAX: usize = 16 * KIB;

/// Connections that the system keeps until they are accepted.
pub const LISTENER_BACKLOG: i32 = 1024;

/// Connections that are accepted before those are looked at that are there.
pub const LISTENER_ACCEPTS_PER_POLL: usize = 64;

/// Handshake messages of a peer that are not whole yet: a long chain of certificates fits.
pub const LANE_HANDSHAKE_BYTES_MAX: usize = 64 * KIB;

/// TLS records that one key seals: half of what AES-GCM takes, 128 GiB.
pub const LANE_KEY_RECORDS_MAX: u64 = 1 << 23;

/// Requests one session has open at a time.
pub const LANE_REQUESTS_MAX: usize = 64;

/// Record bytes that the open offers of one session may have reserved; one record of the largest size fits.
pub const LANE_OFFERED_BYTES_MAX: u64 = 512 * MIB as u64;

/// Answers of one session that wait to be sent; above it no more is read of what it asks.
pub const LANE_ANSWERS_BYTES_MAX: usize = 64 * KIB;

/// What the open requests of one session may keep besides records, whatever others do: a fetch and an offer of 512 records.
pub const LANE_KEPT_EACH_BYTES: usize = 128 * KIB;

/// What those of all sessions may keep beyond that: the keys of a hundred fetches of `LANE_KEYS_MAX`.
pub const LANE_KEPT_BYTES_MAX: usize = 16 * MIB;

/// Tokens handed out and not used yet; above it the oldest goes.
pub const LANE_TOKENS_MAX: usize = 1024;

/// Spans of traced requests that nobody took yet.
pub const LANE_SPANS_MAX: usize = 2048;

/// A token is good for this long.
pub const LANE_TOKEN_MS: u64 = 10_000;

/// A new lane connects, and says hello or is welcomed, within this time.
pub const LANE_HELLO_MS: u64 = 2_000;

/// A frame that has begun is whole within this time, and a write is taken by the peer: 100 KB/s at the least.
pub const LANE_STALL_MS: u64 = 10_000;

/// An offer that brings no byte for this long is given up, and its room is free again.
pub const LANE_STORE_IDLE_MS: u64 = 10_000;

/// How often a waiting lane looks whether it is to end.
pub const LANE_TICK_MS: u64 = 250;

/// A session whose peer said nothing for this long when a request is given up is taken for dead.
pub const LANE_SILENT_MS: u64 = 400;

/// A kernel finds an idle peer dead after about three times this.
pub const LANE_KEEPALIVE_S: u64 = 20;

/// Bytes received, checked and decoded in one go: they must still be in the L2 cache.
pub const LANE_STEP_BYTES: usize = 128 * KIB;

/// Buffer of a lane's socket, each way: 25 Gb/s over 1 ms.
pub const LANE_SOCKET_BYTES: usize = 4 * MIB;

/// Keys that are good for opening records at the same time: the one that seals, and those before it.
pub const SEAL_KEYS_MAX: usize = 8;

/// Records that one derived key seals: GCM takes 2^32 where nonces are drawn; these are counted, and it is still no more.
pub const SEAL_EPOCH_RECORDS_MAX: u64 = 1 << 32;

/// Smallest durable tier: eight segments of eight pages.
pub const DISK_BYTES_MIN: u64 = 256 * KIB as u64;

/// A segment: large enough that its footer and its sync cost nothing, small enough to be evicted whole.
pub const DISK_SEGMENT_BYTES: u64 = 128 * MIB as u64;

/// Segments of a durable tier at least: what is evicted at a time is then a small share of it.
pub const DISK_SEGMENTS_MIN: u64 = 8;

/// Segments kept free: one being written, one being removed.
pub const DISK_RESERVE_SEGMENTS: u64 = 2;

/// Divisor of a segment's bytes: that share may move on when it is evicted, so that eviction gets ahead.
pub const DISK_MOVED_SHARE: u64 = 4;

/// Records of one write and one sync: beyond it a sync costs no less per byte.
pub const DISK_GROUP_BYTES: u64 = 16 * MIB as u64;

/// How long the first record of a group waits for company, in ms: about what a sync takes.
pub const DISK_GROUP_MS: u64 = 10;

/// Records that wait to be written; they cannot be evicted from memory meanwhile.
pub const DISK_QUEUE_BYTES_MAX: u64 = 1024 * MIB as u64;

/// Namespaces of one durable tier; records of further ones stay in memory only.
pub const DISK_NAMESPACES_MAX: usize = 1 << 16;

/// Segments open for reading at the same time.
pub const DISK_FILES_MAX: u64 = 256;

/// File of tombstones beyond which it is written anew, without those that cover nothing any more.
pub const DISK_TOMBSTONES_FILE_BYTES: u64 = MIB as u64;

/// Pause before a disk that failed is tried again, in ms.
pub const DISK_RETRY_MS: u64 = 1_000;

/// How long a disk may be full of others' files, in ms, before the oldest segments go: no accident costs what is durable.
pub const DISK_FULL_PATIENCE_MS: u64 = 60_000;

/// A read that takes longer, in ms, means that the disk hangs: nobody else waits for it.
pub const DISK_STALL_MS: u64 = 2_000;

/// How long somebody waits for a record to become durable, in ms.
pub const DISK_SYNC_WAIT_MS: u64 = 5_000;

/// Segments of the run before that are read at the same time.
pub const DISK_RECOVERY_THREADS: usize = 4;

/// Bytes read again per second in the background: a terabyte in three days.
pub const DISK_SCRUB_BYTES: u64 = 4 * MIB as u64;

/// A segment that goes to an archive: one object.
pub const ARCHIVE_SEGMENT_BYTES: u64 = 64 * MIB as u64;

/// Bytes of an object that are in memory while it goes up; S3 takes parts of 5 MiB and more.
pub const ARCHIVE_PART_BYTES: u64 = 8 * MIB as u64;

/// A part goes up at most so long, in ms, before the next may: uploads use half of the time, and restores have the rest.
pub const ARCHIVE_REST_MS: u64 = 2_000;

/// Longest pause before an archive that failed is tried again, in ms; the first is that of a disk.
pub const ARCHIVE_RETRY_MAX_MS: u64 = 30_000;

/// A read from an archive that takes longer, in ms, means that it hangs: nobody else waits for it.
pub const ARCHIVE_STALL_MS: u64 = 5_000;

/// Reads from an archive that its pace is the mean of.
pub const ARCHIVE_PACE_READS: f64 = 16.0;

/// Half of what is believed of an archive's pace is gone after so long without a read.
pub const ARCHIVE_PACE_FADE_MS: f64 = 300_000.0;

/// How long a connection to an archive may take, in ms.
pub const ARCHIVE_CONNECT_MS: u64 = 3_000;

/// Longest time for one request to an archive, in ms: a part on a link of 3 Mb/s.
pub const ARCHIVE_REQUEST_MS: u64 = 30_000;

/// How long a flush waits for its archive to take note, in ms.
pub const ARCHIVE_NOTE_WAIT_MS: u64 = 4_000;

/// What lies beside segments in an archive, each file: tombstones, flushes, names of models.
pub const ARCHIVE_BESIDE_BYTES: u64 = 64 * MIB as u64;

/// Steps of the time to live after which a segment is closed: a record outlives its time by none of them.
pub const DISK_TTL_STEPS: u32 = 8;

/// Threads that bring records from a shared region to arenas, and as many the other way: one is bound by its own copying, more by
/// the memory.
pub const SHM_THREADS_MAX: usize = 4;

/// Shared regions that one process maps at a time.
pub const SHM_MAPPINGS_MAX: usize = 64;

/// Longest that opening a shared region waits for its lock, in milliseconds.
pub const SHM_OPEN_LOCK_MS: u64 = 5_000;

/// How often a host says in the lock between hosts that it lives, in milliseconds.
pub const SHM_BEAT_MS: u64 = 50;

/// How long after that it writes under the lock, in milliseconds: less than others wait.
pub const SHM_LEASE_MS: u64 = 400;

/// A host, or the lock's manager, that says nothing for so long is dead, in milliseconds: others go on within a second.
pub const SHM_SILENT_MS: u64 = 600;

/// The same, where there are few processors: one thread would leave half of two idle while an engine waits.
pub const SHM_THREADS_MIN: usize = 2;

/// Bytes of a shared region that a process maps in one go: what else changes its memory map waits for so long.
pub const SHM_POPULATE_BYTES: u64 = 2 * MIB as u64;

/// Requests that wait for a shared region's threads; what is above waits where it came from.
pub const SHM_REQUESTS_MAX: usize = 1024;

/// Bytes that `tierkv doctor --shm` measures in: more than caches of one core hold.
pub const SHM_DOCTOR_BYTES: u64 = 64 * MIB as u64;

/// Rounds of each of its trials.
pub const SHM_DOCTOR_ROUNDS: u64 = 500;

/// How long one of its two processes waits for the other to come, in ms.
pub const SHM_DOCTOR_PEER_MS: u64 = 120_000;

/// How long it waits for a reply, in ms: the other one's processor may have other work.
pub const SHM_DOCTOR_REPLY_MS: u64 = 10_000;

/// What was published and is not seen after so long, in ms, is not seen.
pub const SHM_DOCTOR_UNSEEN_MS: u64 = 20;

/// Chunks of a shared region: a record wastes half of one, and each costs 256 bytes of index.
pub const SHM_CHUNK_BYTES: u64 = 16 * KIB as u64;
