// Owns the limits of a pool of vaults: how its ring is cut, and how prompts are spread over it.

/** Vaults of one class. */
export const POOL_VAULTS_MAX = 16;
/** Positions on the hash ring of a node. */
export const RING_NODES = 100;
/** Evenly spread places of the ring by which shares of unlike vaults are evened out, and how often. */
export const RING_SAMPLES = 4096;
export const RING_TURNS = 12;
/** Consecutive blocks of a prompt that are placed together, by the hash of the first. */
export const RUN_BLOCKS = 256;
/** Such a run is cut into parts of so many blocks, on several vaults. */
export const PART_BLOCKS = 2;
/** Consecutive parts that are spread evenly by themselves, because many prompts are no longer. */
export const STRETCH_PARTS = 32;
/** So many parts a vault takes above its share of a stretch and of a run, rounded up: less would move more blocks when another vault comes. */
export const SHARE_SLACK = 0.7;
/** How many ways there are to lay out a run, and from how many of them shown shares are counted. */
export const LAYOUTS = 256;
const LAYOUT_SAMPLES = 32;
/** Lists of vaults whose layouts are kept: 32 KiB each for a vault. */
export const LAYOUT_LISTS_MAX = 8;
/** Vaults of a pool from which on it keeps parity, and from which on a parity record stands for four blocks instead of two. */
export const PARITY_VAULTS_MIN = 3;
export const PARITY_VAULTS_WIDE = 5;
export const PARITY_MEMBERS = 2;
export const PARITY_MEMBERS_WIDE = 4;
/** Parity records that are not complete yet, and their bytes with those that wait to be sent; what is oldest is given up. */
export const PARITY_OPEN_MAX = 8192;
export const PARITY_OPEN_BYTES: number = 128 * 2 ** 20;
/** Blocks whose parents are remembered, so that only those of one chain share a parity record. */
export const PARITY_PARENTS_MAX = 65_536;
/** Capacities count in steps of this many to the factor two: what memory happens to be free at a start moves little. */
export const CAPACITY_STEPS = 8;
/** What the capacity of a vault may count times. */
export const VAULT_WEIGHT_LEAST = 0.01;
export const VAULT_WEIGHT_MOST = 100;
/** A vault that brings less than this of the fastest, for its weight, is called slow. */
export const SLOW_VAULT_SHARE = 0.5;
/** How long the owners before a change are asked, too, in ms, and those of how many changes. */
export const VIEW_KEPT_MS = 3_600_000;
export const VIEWS_KEPT_MAX = 4;
/** Where all that is asked for is known to be held, vaults that have not answered get this long, and as long as it took, in ms. */
export const LOOKUP_GRACE_MS = 5;
/** Blocks that the shown share of a vault is counted from. */
export const SHARE_SAMPLES: number = LAYOUT_SAMPLES * RUN_BLOCKS;
/** Vaults of one class that belong to a pool or have left it; below NO_VAULT. */
export const POOL_CLIENTS_MAX = 64;
/** One question to a DNS server, and how often it is asked. */
export const DNS_TIMEOUT_MS = 1_500;
export const DNS_TRIES = 2;
/** How often names are resolved again, and how long that may take, in ms. */
export const MEMBERS_EVERY_MS = 10_000;
export const MEMBERS_TIMEOUT_MS = 8_000;
/** How long a command waits for vaults to say how full they are, in ms. */
export const VAULTS_SEEN_MS = 1_500;
/** Records that move from vault to vault at a time, their bytes, and how many such batches are under way. */
export const DRAIN_BATCH_RECORDS = 64;
export const DRAIN_BATCH_BYTES = 16_777_216;
export const DRAIN_BATCHES = 2;
/** Records of one namespace that are placed together; beyond it blocks whose run is cut are left behind, counted. */
export const DRAIN_RECORDS_MAX = 1_048_576;
/** How long what a vault let in before it was emptied may still be arriving, and how often that is looked at, in ms. */
export const DRAIN_SETTLE_MS = 10_000;
export const DRAIN_POLL_MS = 50;
/** How long vaults are listened for that announce themselves, how often they are asked, and how many are taken note of. */
export const DISCOVER_MS = 1_800;
export const DISCOVER_ASK_MS = 600;
export const DISCOVER_VAULTS_MAX = 64;
/** Vaults and machines of a pool that its list names, gone ones too, and bytes of what is said of one. */
export const LISTED_VAULTS_MAX = 64;
export const LISTED_MACHINES_MAX = 512;
export const STATEMENT_BYTES_MAX = 4_096;
/** How often a vault asks another of its pool what it missed, how soon again while none answered, and what that may take, in ms. */
export const GOSSIP_EVERY_MS = 3_000;
export const GOSSIP_RETRY_MS = 300;
export const GOSSIP_TIMEOUT_MS = 2_000;
/** How long a vault that failed is not asked for its list, in ms. */
export const LISTING_PAUSE_MS = 500;
/** How long commands wait for a list of vaults, in ms. */
export const LISTING_WAIT_MS = 3_000;
/** Endpoints of etcd. */
export const ETCD_ENDPOINTS_MAX = 8;
/** How long a vault that ended stays registered, in s, and how often one that runs says so, in ms. */
export const ETCD_LEASE_S = 6;
export const ETCD_ALIVE_MS = 2_000;
/** What one call of etcd may take, and the pause after one that failed, in ms. */
export const ETCD_TIMEOUT_MS = 2_000;
export const ETCD_PAUSE_MS = 500;
/** How often a quiet connection to etcd is tried; its servers take no more than one ping in 5 s. */
export const ETCD_PING_MS = 6_000;
