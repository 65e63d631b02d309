// Owns the limits of the cost model: what it remembers of engines and links, when it changes its mind, how long it waits.

const KIB = 1024;

/** Sizes of steps or loads whose mean is remembered. */
export const FIT_BUCKETS_MAX = 256;
/** Weight of a new sample in the mean of its size. */
export const FIT_SMOOTHING = 0.25;
/** Weight of a size per sample that came after its last one: halved after about 140. */
export const FIT_FADE = 0.995;
/** Weight of a belief about a law, such as that a part is 0, beside 1 for each size of which there are samples. */
export const FIT_DOUBT = 0.05;
/** Tokens of a prompt that take as long as what each step costs beside them, and as one decoded token, until samples show it. */
export const STEP_COST_TOKENS = 64;
/** Sweeps over the coefficients of a law, and the relative change at which they are enough. */
export const FIT_SWEEPS_MAX = 2_000;
export const FIT_CHANGE_MIN = 1e-9;
/** A link that was not measured for this long is tried with a few blocks, beside the request. */
export const LINK_STALE_MS = 5_000;
/** One fetch, and one batch of saves, takes a link about this long: small enough to change one's mind. */
export const LINK_BATCH_MS = 50;
/** Bytes of such a batch, least, and while nothing is known of the link. */
export const LINK_BATCH_BYTES_MIN: number = 256 * KIB;
/** While nothing is loaded, what loading costs counts for half after this time. */
export const LOAD_FADE_MS = 60_000;
export const RTT_SMOOTHING = 0.2;
export const QUEUE_SMOOTHING = 0.2;
export const WIRE_SMOOTHING = 0.2;
/** How often a running restore is weighed against computing. */
export const PACE_TICK_MS = 20;
/** How often an engine hears of a plan that it waits for and that is not forgotten; below its `stall_ms`. */
export const WAITS_EVERY_MS = 100;
/** Fetching must beat computing by this share to be begun: near break-even it gains less than giving up half-way costs. */
export const BEGIN_MARGIN = 0.1;
/** Handing over must beat waiting by this share before a restore is cut: estimates are not that good. */
export const RECOMPUTE_MARGIN = 0.1;
/** A look-up may take this share of the time computing would take, or what look-ups of this vault usually take. */
export const LOOKUP_SHARE_MAX = 0.03;
/** The same of a vault whose answers usually come in time: one late answer costs less than the restore that it would have brought. */
export const LOOKUP_LATE_SHARE_MAX = 0.1;
/** What another engine hands over is looked up this often, ever slower while nothing new comes. */
export const HANDOFF_POLL_FIRST_MS = 5;
export const HANDOFF_POLL_MAX_MS = 40;
/** Share of `[restore] wait_ms` that a hand-off is waited for: what came by then must still be fetched. */
export const HANDOFF_WAIT_SHARE = 0.8;
/** Share of the arena's blocks that stays free of what is fetched of hand-offs that are waited for. */
export const HANDOFF_ROOM_SHARE = 0.5;
