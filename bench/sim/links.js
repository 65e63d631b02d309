// Owns simulated links and one engine's time: the real cost model decides by its samples, the true link answers.

const BLOCK_TOKENS = 16;
/** Bytes of one block: Llama-3.1-8B with 8 bits a number. */
const BLOCK_BYTES = 16 * 64 * 1024;
const LOAD_BYTES_PER_S = 8e9;
const QUESTION_MS = 1;
const KEY_BYTES = 48;
/** Mb/s; some links are too slow to be useful. */
const PACES = [100, 1000, 10_000, 40_000];
/** Weight of the latest sample in the estimated rate. */
const SMOOTHING = 0.7;
/** Relative error below which a rate counts as known, and the steps after which that of computing does. */
const [KNOWN, STEPS_KNOWN] = [0.1, 10];
/** Factor over the time of computing above which an answer counts as late. */
const LATE = 1.25;

const isNear = (seen, truth) => Math.abs(seen / truth - 1) < KNOWN;

/** Link from one host to one vault. */
export class Way {
  #seen = null;

  constructor(chance, { Link }) {
    this.change(chance);
    const flow = { rate: (other = null) => this.#seen ?? other, idleMs: () => 0 };
    this.link = new Link({ down: flow, up: flow });
  }

  change(chance) {
    this.bytesPerS = (chance.pick(PACES) * 1e6) / 8;
  }

  get isKnown() {
    return isNear(this.#seen ?? 0, this.bytesPerS);
  }

  /** Returns the seconds to transfer so many bytes. */
  secondsOf(bytes) {
    return QUESTION_MS / 1000 + bytes / this.bytesPerS;
  }

  brought() {
    this.#seen = (this.#seen ?? this.bytesPerS) * (1 - SMOOTHING) + this.bytesPerS * SMOOTHING;
  }
}

/** An engine that computes everything not restored in one step. */
export class Engine {
  constructor(chance, { EngineRates }) {
    this.rates = new EngineRates();
    this.tokenS = 1e-5 * 10 ** (2 * chance.next());
    this.counts = { restored: 0, computed: 0, tookS: 0, bestS: 0, late: 0 };
  }

  #computeS(from, to) {
    return 0.02 + this.tokenS * (to - from + (to * to - from * from) / 50_000);
  }

  #compute(from, to) {
    const seconds = this.#computeS(from, to);
    this.rates.prefill.learn({
      tokens: to - from,
      attended: (to * to - from * from) / 2,
      seconds,
    });
    return seconds;
  }

  /** Answers a prompt of `blocks` blocks; `held` has the leading blocks held per link. Returns the seconds it took. */
  ask(blocks, held) {
    const { rates, counts } = this;
    const end = blocks * BLOCK_TOKENS;
    const ways = [...held].map(([way, count]) => ({ way, bytes: count * BLOCK_BYTES }));
    for (const { way, bytes } of ways)
      way.link.answered((bytes / BLOCK_BYTES) * KEY_BYTES, QUESTION_MS);
    const bytes = ways.reduce((sum, one) => sum + one.bytes, 0);
    const tokens = (bytes / BLOCK_BYTES) * BLOCK_TOKENS;
    const predicted = ways.map((one) => rates.fetchS(one.way.link, one.bytes, 0));
    const fetchS = predicted.includes(null) ? null : Math.max(0, ...predicted);
    const decision = rates.choose(0, end, [{ tokens, fetchS, loadBytes: bytes }]);
    const truth = Math.max(0, ...ways.map((one) => one.way.secondsOf(one.bytes)));
    const loadS = bytes / LOAD_BYTES_PER_S;
    // Unknown links, or stale ones, are tried and not judged.
    const isKnown =
      rates.prefill.samples > STEPS_KNOWN &&
      isNear(rates.loadS(bytes), loadS) &&
      ways.every(({ way }) => way.isKnown);
    const [computeS, restoreS] = [
      this.#computeS(0, end),
      truth + loadS + this.#computeS(tokens, end),
    ];
    if (decision.tokens > 0) {
      for (const { way } of ways) way.brought();
      rates.loaded(bytes, { copyS: loadS });
      this.#compute(tokens, end);
    } else {
      this.#compute(0, end);
    }
    const tookS = decision.tokens > 0 ? restoreS : computeS;
    if (isKnown && tokens > 0) {
      counts[decision.tokens > 0 ? "restored" : "computed"] += 1;
      counts.tookS += tookS;
      counts.bestS += Math.min(computeS, restoreS);
      counts.late += Number(tookS > computeS * LATE);
    }
    return tookS;
  }
}
