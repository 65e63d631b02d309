// Owns the limits of the cost model: memory of engines and links, thresholds of decisions, and waits.

const KIB = 1024;

/** Sizes of steps or loads whose mean is remembered. */
export const FIT_BUCKETS_MAX = 256;
/** Weight of a new sample in the mean of its size. */
export const FIT_SMOOTHING = 0.25;
/** Decay of a size's weight per later sample: halved after about 140. */
export const FIT_FADE = 0.995;
/** Weight of a prior, such as a coefficient of 0, against 1 for each sampled size. */
export const FIT_DOUBT = 0.05;
/** Fixed cost of a step, and of one decoded token, in prompt tokens, until samples show it. */
export const STEP_COST_TOKENS = 64;
/** Sweeps over the coefficients of a fit, and the relative change that ends them. */
export const FIT_SWEEPS_MAX = 2_000;
export const FIT_CHANGE_MIN = 1e-9;
/** A link unmeasured for this long is probed with a few blocks, beside the request. */
export const LINK_STALE_MS = 5_000;
/** Link time of one fetch or batch of saves: short, so that decisions can change. */
export const LINK_BATCH_MS = 50;
/** Least bytes of such a batch, also while the link's rate is unknown. */
export const LINK_BATCH_BYTES_MIN: number = 256 * KIB;
/** Half-life of the loading cost while nothing is loaded. */
export const LOAD_FADE_MS = 60_000;
export const RTT_SMOOTHING = 0.2;
export const QUEUE_SMOOTHING = 0.2;
export const WIRE_SMOOTHING = 0.2;
export const ASIDE_SMOOTHING = 0.2;
/** How often a running restore is weighed against computing. */
export const PACE_TICK_MS = 20;
/** Interval of progress frames for a plan that an engine waits for; below its `stall_ms`. */
export const WAITS_EVERY_MS = 100;
/** Share by which fetching must beat computing to begin: near break-even an abort costs more than the gain. */
export const BEGIN_MARGIN = 0.1;
/** Share by which recomputing must beat waiting before a restore is cut, because estimates are inexact. */
export const RECOMPUTE_MARGIN = 0.1;
/** A look-up may take this share of the computing time, or this vault's usual look-up time. */
export const LOOKUP_SHARE_MAX = 0.03;
/** The same for a vault that is usually in time: one late answer costs less than the restore it brings. */
export const LOOKUP_LATE_SHARE_MAX = 0.1;
/** A fetch may be silent for this share of the computing that its restore saves, or for `[restore] stall_ms`. */
export const STALL_SHARE_MAX = 0.1;
/** Interval of look-ups for a hand-off: the first, and the longest while nothing new comes. */
export const HANDOFF_POLL_FIRST_MS = 5;
export const HANDOFF_POLL_MAX_MS = 40;
/** Share of `[restore] wait_ms` to wait for a hand-off, because its blocks must still be fetched. */
export const HANDOFF_WAIT_SHARE = 0.8;
/** Share of the arena's blocks kept free of blocks fetched early for hand-offs. */
export const HANDOFF_ROOM_SHARE = 0.5;
/** An engine loads early what it waits for no longer than this, or than loading takes, seconds: its blocks are held so long. */
export const EARLY_HOLD_S = 1;
/** Decoded bytes of the smallest restore that is loaded early: an engine copies as many in one step. */
export const EARLY_BYTES_MIN: number = 64 * KIB * KIB;
/** Share of the arena's blocks that a prompt larger than the arena uses at a time, and the most blocks. */
export const WINDOW_ARENA_SHARE = 0.5;
export const WINDOW_BLOCKS_MAX = 4096;
