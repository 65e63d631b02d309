// Owns the limits of a pool of vaults: how its ring is cut, and how prompts are spread over it.

/** Vaults of one class. */
export const POOL_VAULTS_MAX = 16;
/** Positions on the hash ring of a node. */
export const RING_NODES = 100;
/** Evenly spread ring positions used to balance the shares of unequal vaults, and iterations. */
export const RING_SAMPLES = 4096;
export const RING_TURNS = 12;
/** Consecutive blocks of a prompt that are placed together, by the hash of the first. */
export const RUN_BLOCKS = 256;
/** Blocks of a part; a run's parts lie on several vaults. */
export const PART_BLOCKS = 2;
/** Consecutive parts that are spread evenly by themselves, because many prompts are no longer. */
export const STRETCH_PARTS = 32;
/** Parts a vault may take above its share of a stretch or run, rounded up: less would move more blocks when a vault joins. */
export const SHARE_SLACK = 0.7;
/** Layouts of a run, and layouts sampled for shown shares. */
export const LAYOUTS = 256;
const LAYOUT_SAMPLES = 32;
/** Lists of vaults whose layouts are kept: 32 KiB each for a vault. */
export const LAYOUT_LISTS_MAX = 8;
/** Steps of capacity per factor of two, so that small changes of free memory move few blocks. */
export const CAPACITY_STEPS = 8;
/** Bounds of a vault's capacity factor. */
export const VAULT_WEIGHT_LEAST = 0.01;
export const VAULT_WEIGHT_MOST = 100;
/** A vault below this share of the fastest rate, by weight, is reported as slow. */
export const SLOW_VAULT_SHARE = 0.5;
/** How long former owners are asked, too, in ms, and after how many changes. */
export const VIEW_KEPT_MS = 3_600_000;
export const VIEWS_KEPT_MAX = 4;
/** Absences of vaults whose stand-ins are asked, too: each costs a look-up of 2,000 keys about 0.2 ms. */
export const ABSENCES_KEPT_MAX = 8;
/** Once all blocks are known to be held, other vaults get this long, plus the elapsed time, in ms. */
export const LOOKUP_GRACE_MS = 5;
/** Blocks sampled for a vault's shown share. */
export const SHARE_SAMPLES: number = LAYOUT_SAMPLES * RUN_BLOCKS;
/** Vaults of one class that belong to a pool or have left it; below NO_VAULT. */
export const POOL_CLIENTS_MAX = 64;
/** Timeout of a DNS query, and its tries. */
export const DNS_TIMEOUT_MS = 1_500;
export const DNS_TRIES = 2;
/** Interval and timeout of resolving names, in ms. */
export const MEMBERS_EVERY_MS = 10_000;
export const MEMBERS_TIMEOUT_MS = 8_000;
/** How long a command waits for vaults' figures, in ms: longer than one of them may take to fail. */
export const VAULTS_SEEN_MS = 3_000;
/** Records that move from vault to vault at a time, their bytes, and how many such batches are under way. */
export const DRAIN_BATCH_RECORDS = 64;
export const DRAIN_BATCH_BYTES = 16_777_216;
export const DRAIN_BATCHES = 2;
/** Records of one namespace placed together; beyond it, blocks of a cut run are left behind and counted. */
export const DRAIN_RECORDS_MAX = 1_048_576;
/** How long records admitted before a drain may still arrive, and the polling interval, in ms. */
export const DRAIN_SETTLE_MS = 10_000;
export const DRAIN_POLL_MS = 50;
/** Discovery of announced vaults: duration, query interval, and vaults kept. */
export const DISCOVER_MS = 1_800;
export const DISCOVER_ASK_MS = 600;
export const DISCOVER_VAULTS_MAX = 64;
/** Vaults and machines in a pool's list, gone ones included, and bytes of one entry. */
export const LISTED_VAULTS_MAX = 64;
export const LISTED_MACHINES_MAX = 512;
/** Flushes in a pool's list, the newest; a vault that was away for more of them drops everything. */
export const LISTED_FLUSHES_MAX = 256;
export const STATEMENT_BYTES_MAX = 4_096;
/** Interval of a vault's queries to its pool for missed entries, its retry pause, and timeout, in ms. */
export const GOSSIP_EVERY_MS = 3_000;

/** How long a vault that is let into its pool again is asked for its own entry first, in ms. */
export const ADMIT_WAIT_MS = 1_000;
export const GOSSIP_RETRY_MS = 300;
export const GOSSIP_TIMEOUT_MS = 2_000;
/** Pause before a failed vault is asked for its list again, in ms. */
export const LISTING_PAUSE_MS = 500;
/** How long commands wait for a list of vaults, in ms. */
export const LISTING_WAIT_MS = 3_000;
/** Endpoints of etcd. */
export const ETCD_ENDPOINTS_MAX = 8;
/** How long an ended vault stays registered, in s, and a running one's renewal interval, in ms. */
export const ETCD_LEASE_S = 6;
export const ETCD_ALIVE_MS = 2_000;
/** Timeout of a call to etcd, and the pause after a failure, in ms. */
export const ETCD_TIMEOUT_MS = 2_000;
export const ETCD_PAUSE_MS = 500;
/** Ping interval of a quiet connection to etcd, whose servers accept one in 5 s. */
export const ETCD_PING_MS = 6_000;
