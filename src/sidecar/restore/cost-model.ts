// Owns the weighing of one engine's restores against computing: before the look-up, after it, and while a fetch runs.
import { HASH_BYTES, hashAt, PACKED_KEY_BYTES } from "../../base/block.ts";
import type { Namespace, RecordClass } from "../../base/block.ts";
import { blockKey } from "../../base/key-text.ts";
import {
  EARLY_BYTES_MIN,
  EARLY_HOLD_S,
  LOOKUP_SHARE_MAX,
  RECOMPUTE_MARGIN,
} from "../../base/limits/cost.ts";
import {
  FORECAST_LENGTHS,
  FORECAST_TOKENS_MIN,
  PROMPT_TOKENS_MAX,
} from "../../base/limits/general.ts";
import { nowMs } from "../../base/time.ts";
import type { Decision, EngineRates, Offer } from "../../cost/engine-rates.ts";
import { isStale } from "../../cost/link.ts";
import type { Link } from "../../cost/link.ts";
import type { Step } from "../../cost/prefill.ts";
import type { BlockCache } from "../slots/block-cache.ts";
import type { PrefetchGroup } from "../socket/asked.ts";
import type { Links } from "../vaults/vaults.ts";
import { answerTimes } from "./answer-times.ts";
import { cutRanges } from "./boundary.ts";
import type { Boundary, GroupShape } from "./boundary.ts";
import type { Fetcher } from "./fetcher.ts";
import type { Footprint, Forecast } from "./forecast.ts";
import type { GroupRange, Plan, Span } from "./plan.ts";

export interface CostModelOptions {
  rates: EngineRates;
  links: Links;
  cache: BlockCache;
  shards: number;
  /** Returns the numbers of the engine's groups. */
  groups(): number[];
  shapeOf(group: number): GroupShape & { class: RecordClass };
  /** Decoded bytes of one block with all shards. */
  sourceBytes(group: number): number;
  /** Largest wire bytes of one block with all shards. */
  blockBytes(group: number): number;
  fetcher: Pick<Fetcher, "pendingBytes" | "turnOf">;
}

/** Whether the engine waits for a plan, and how many earlier requests it has not begun. */
export type Waits = Pick<Plan, "isAsked" | "ahead">;
/** A plan before its look-up. */
type Arrived = Waits & Pick<Plan, "span" | "namespace">;
/** A boundary that the prompt could be restored to, and the blocks needed. */
type Reach = Readonly<Pick<Boundary, "tokens"> & { ranges: readonly GroupRange[] }>;
/** Bytes by class and vault. */
type Bytes = Record<RecordClass, Float64Array>;

export class CostModel {
  readonly #options: CostModelOptions;

  constructor(options: CostModelOptions) {
    this.#options = options;
  }

  spanOf(groups: readonly PrefetchGroup[]): Span {
    const tokensOf = (group: number, blocks: number): number =>
      this.#options.shapeOf(group).tokens * blocks;
    return {
      start: Math.max(0, ...groups.map(({ group, from }) => tokensOf(group, from))),
      end: Math.max(
        0,
        ...groups.map(({ group, hashes }) => tokensOf(group, hashes.length / HASH_BYTES)),
      ),
    };
  }

  /** Milliseconds that computing takes, and so the longest wait for a restore; null: not known. */
  recomputeMs({ start, end }: Span): number | null {
    const seconds = this.#gainS({ start, end });
    return seconds === null ? null : seconds * 1000;
  }

  /** Longest useful look-up in milliseconds; 0: even the usual answer leaves no gain; null: no opinion. */
  lookupMs(plan: Arrived, groups: readonly PrefetchGroup[]): number | null {
    const { links, rates, shards } = this.#options;
    const { span, namespace } = plan;
    const gainS = this.#gainS(span);
    if (gainS === null || this.#isFirstPlaced(groups, namespace)) return null;
    const roomMs = (gainS - rates.loadS(0)) * 1000;
    let usualMs = 0;
    let mostMs = gainS * 1000 * LOOKUP_SHARE_MAX;
    for (const group of groups) {
      const ways = links[group.class];
      const bytes = (group.hashes.length / HASH_BYTES) * shards * PACKED_KEY_BYTES;
      for (const link of ways.length === 0 ? [null] : ways) {
        const asked = answerTimes(link, bytes / Math.max(1, ways.length), roomMs);
        usualMs = Math.max(usualMs, asked.usualMs);
        mostMs = Math.max(mostMs, asked.mostMs);
      }
    }
    const waitMs = (this.#waitS(plan) ?? Number.POSITIVE_INFINITY) * 1000;
    return usualMs >= roomMs + waitMs ? 0 : Math.min(roomMs, mostMs);
  }

  /** Decides how much of the held blocks is restored, and sets it in the plan. */
  decide(plan: Plan, { tokens, ranges }: Reach): Decision {
    const decision = this.#weigh(plan, tokens, ranges);
    plan.tokens = decision.tokens;
    plan.isRefused = decision.choice === "recomputed" && decision.why !== "nothing_held";
    plan.ranges =
      decision.tokens < tokens ? cutRanges(ranges, decision.tokens, this.#options.shapeOf) : ranges;
    return decision;
  }

  #weigh(plan: Plan, boundary: number, ranges: readonly GroupRange[]): Decision {
    const { span, isHandedOver } = plan;
    const offers: Offer[] = [];
    const local = this.#localOffer(ranges);
    if (local !== null && local.tokens > span.start && local.tokens < boundary) offers.push(local);
    const near = this.#nearOffer(ranges);
    if (near !== null && near.tokens > (local?.tokens ?? span.start)) offers.push(near);
    offers.push(this.#wholeOffer(boundary, ranges));
    const wanted = isHandedOver ? "handed_over" : null;
    const waitS = this.#waitS(plan);
    return this.#options.rates.choose(span.start, span.end, offers, { wanted, waitS });
  }

  /** Seconds until the engine has room for the request, in which fetching costs nothing; null: not known, and taken as long enough. */
  #waitS({ isAsked, ahead }: Waits): number | null {
    return isAsked ? 0 : this.#options.rates.queue.seconds(ahead);
  }

  /** Notes that the engine has room for the request, or began it without asking. A reclaimed plan goes on waiting. */
  began({ ahead, isAsked, reclaimAskedMs, case: { openedMs } }: Plan): void {
    if (isAsked || reclaimAskedMs !== null) return;
    this.#options.rates.queue.began(ahead, (nowMs() - openedMs) / 1000);
  }

  /** True when computing would answer sooner than the plan. */
  isLost(plan: Plan): boolean {
    if (plan.isHandedOver) return false;
    if (plan.state === "fetching") return this.isBetterNow(plan);
    return plan.state === "queued" && this.decide(plan, plan).choice === "recomputed";
  }

  /** True when using the placed blocks and computing the rest answers before the missing blocks would. */
  isBetterNow(plan: Plan): boolean {
    const { rates, sourceBytes } = this.#options;
    const { start, end } = plan.span;
    if (rates.isAlways || plan.runs.every(({ isComplete }) => isComplete)) return false;
    const wholeBytes = this.#decodedBytes(plan);
    const placedBytes = plan.runs.reduce(
      (sum, run) => sum + run.placed * sourceBytes(run.group),
      0,
    );
    const placedTokens = this.placedTokens(plan);
    const whole = { tokens: plan.tokens, fetchS: this.#leftS(plan) };
    const wait = rates.costOf({ ...whole, loadBytes: wholeBytes }, end);
    const loadBytes = placedTokens > start ? placedBytes : 0;
    const now = rates.costOf({ tokens: placedTokens, fetchS: 0, loadBytes }, end);
    if (wait === null || now === null) return false;
    const nowS = now.computeS + (loadBytes > 0 ? now.loadS : 0);
    return nowS * (1 + RECOMPUTE_MARGIN) < wait.fetchS + wait.loadS + wait.computeS;
  }

  /** True when the engine may begin to load a plan, because it would not wait long for what is still to come. */
  isNearlyHere(plan: Plan): boolean {
    const bytes = this.#decodedBytes(plan);
    if (bytes < EARLY_BYTES_MIN) return false;
    const leftS = this.#leftS(plan);
    return leftS !== null && leftS <= Math.max(EARLY_HOLD_S, this.#options.rates.loadS(bytes));
  }

  #decodedBytes({ runs }: Plan): number {
    return runs.reduce((sum, run) => sum + run.length * this.#options.sourceBytes(run.group), 0);
  }

  /** Seconds until the blocks of a running fetch that are still missing have come; null: not known. */
  #leftS(plan: Plan): number | null {
    const missing = this.#noBytes();
    for (const run of plan.runs) {
      run.addLeft(missing[run.recordClass], this.#options.blockBytes(run.group));
    }
    const ahead = this.#pending(plan.turn);
    for (const of of ["kv", "ssm"] as const) {
      for (const [vault, bytes] of missing[of].entries()) {
        ahead[of][vault] = Math.max(0, (ahead[of][vault] ?? 0) - bytes);
      }
    }
    const far = this.#noBytes();
    addArchivedLeft(far, plan);
    return this.#fetchS(missing, ahead, far);
  }

  /** Prompt tokens up to which the placed blocks are usable. */
  placedTokens({ runs, span, tokens }: Plan): number {
    const [run] = runs;
    if (run === undefined) return span.start;
    if (this.#isPlain(runs))
      return (run.first + run.placed) * this.#options.shapeOf(run.group).tokens;
    return runs.every(({ isComplete, cut }) => isComplete && cut !== "slower")
      ? tokens
      : span.start;
  }

  /** Learns that vLLM loaded `tokens` of a plan: it copied for `copyS`, and had all `tookS` after the look-up (0: not known). */
  loaded(plan: Plan, tokens: number, { copyS, tookS }: { copyS: number; tookS: number }): void {
    const { rates, sourceBytes, shapeOf } = this.#options;
    const bytes = plan.runs.reduce((sum, { group, placed }) => {
      const most = Math.ceil(tokens / shapeOf(group).tokens);
      return sum + Math.min(placed, most) * sourceBytes(group);
    }, 0);
    const { vault, shared } = plan.case.account.fetched;
    const isFetched = vault + shared === plan.runs.reduce((sum, { placed }) => sum + placed, 0);
    rates.loaded(bytes, { copyS, tookS: isFetched ? tookS : 0 });
  }

  /**
   * Learns that a restored request's first token came `answeredS` after its arrival, of which look-up and load took `tookS`. The
   * tokens from `restTokens` on were computed.
   */
  answered(of: {
    tookS: number;
    restTokens: number;
    promptTokens: number;
    answeredS: number;
  }): void {
    const { rates } = this.#options;
    const restS = rates.prefill.seconds(of.restTokens, of.promptTokens);
    if (restS !== null) rates.answered(of.answeredS - of.tookS - restS);
  }

  /** Seconds that computing `tokens` of a plan, after the engine's own, would have taken; null: not known. */
  prefillS({ span: { start, end } }: Plan, tokens: number): number | null {
    const { prefill } = this.#options.rates;
    const whole = prefill.seconds(start, end);
    const rest = prefill.seconds(Math.min(start + tokens, end), end);
    return whole === null || rest === null ? null : Math.max(0, whole - rest);
  }

  /** Learns from measured steps. Returns the fewest tokens whose computing takes longer than asking a vault. */
  learn(steps: readonly Step[]): number {
    const { rates, links } = this.#options;
    for (const step of steps) rates.prefill.learn(step);
    const link = links.kv[0] ?? links.ssm[0];
    const askMs = link === undefined || link.isUnasked ? 0 : (link.roundTripMs(0) ?? 0);
    // Half of that time, so that only clear cases are not looked up.
    return rates.tokensWorth((rates.loadS(0) + askMs / 1000) / 2, PROMPT_TOKENS_MAX);
  }

  /**
   * Whether a restore could ever win on the present links. The longest prompt decides, because gains grow faster with length than
   * costs; one far longer than any seen may gain more than predicted. While measurements are missing or stale, saving goes on.
   */
  isWorthSaving(maxModelLen: number): boolean {
    const { rates, links, groups, shapeOf } = this.#options;
    const gainS = rates.isAlways ? null : rates.prefill.mostSeconds(maxModelLen);
    if (gainS === null) return true;
    for (const group of groups()) {
      const ways = links[shapeOf(group).class];
      const isUnknown = ({ down, up }: Link): boolean => isStale(down) && isStale(up);
      if (ways.length === 0 || ways.some(isUnknown)) return true;
    }
    const { missing, loadBytes } = this.#bytesOf(maxModelLen);
    const fetchS = this.#fetchS(missing, this.#noBytes());
    return fetchS === null || fetchS + rates.loadS(loadBytes) < gainS + rates.queue.usualS;
  }

  /** Forecasts for prompts of growing length, up to the longest that the engine takes. */
  forecast(maxModelLen: number): Forecast[] {
    const all = Array.from({ length: FORECAST_LENGTHS }, (_, at) => FORECAST_TOKENS_MIN * 2 ** at);
    const lengths = all.filter((tokens) => tokens < maxModelLen);
    if (lengths.length < all.length) lengths.push(maxModelLen);
    return lengths.map((tokens) => this.#forecastOf(tokens));
  }

  footprint(): Footprint {
    const { rates, groups, shapeOf, blockBytes } = this.#options;
    const footprint = { tokenBytes: 0, stateBytes: 0, isMeasured: rates.isWireKnown };
    for (const group of groups()) {
      const { tokens, class: recordClass } = shapeOf(group);
      const bytes = rates.wireBytes(blockBytes(group));
      if (recordClass === "ssm") footprint.stateBytes += bytes;
      else footprint.tokenBytes += bytes / tokens;
    }
    return footprint;
  }

  #forecastOf(tokens: number): Forecast {
    const { rates, groups, shapeOf } = this.#options;
    const step = Math.max(1, ...groups().map((group) => shapeOf(group).tokens));
    // At least one token is computed.
    const boundary = Math.floor((tokens - 1) / step) * step;
    const { missing, loadBytes, slots } = this.#bytesOf(boundary);
    const ms = (seconds: number | null): number | null => (seconds === null ? null : seconds * 1e3);
    const wireBytes = (bytes: Float64Array): number =>
      rates.wireBytes(bytes.reduce((sum, of) => sum + of, 0));
    return {
      tokens,
      isBeyond: tokens > rates.prefill.longestTokens,
      computeMs: ms(rates.prefill.seconds(0, tokens)),
      restMs: ms(rates.prefill.seconds(boundary, tokens)),
      loadMs: ms(rates.seenLoadS(loadBytes)),
      seenMs: ms(rates.seenRestoreS(loadBytes)),
      asideMs: ms(rates.asideS),
      wireBytes: { kv: wireBytes(missing.kv), ssm: wireBytes(missing.ssm) },
      slots,
    };
  }

  /** Arena slots that a restore of that many tokens takes. */
  slotsOf(tokens: number): number {
    return this.#bytesOf(tokens).slots;
  }

  /** Largest wire bytes, decoded bytes and slots for a prompt of that length, spread evenly over the vaults. */
  #bytesOf(promptTokens: number): { missing: Bytes; loadBytes: number; slots: number } {
    const { groups, shapeOf, shards, sourceBytes, blockBytes } = this.#options;
    const missing = this.#noBytes();
    let [loadBytes, slots] = [0, 0];
    for (const group of groups()) {
      const { tokens, tail, class: recordClass } = shapeOf(group);
      const whole = Math.floor(promptTokens / tokens);
      const blocks = tail === 0 ? whole : Math.min(tail, whole);
      const of = missing[recordClass];
      for (const [vault, bytes] of of.entries()) {
        of[vault] = bytes + (blocks * blockBytes(group)) / of.length;
      }
      loadBytes += blocks * sourceBytes(group);
      slots += blocks * shards;
    }
    return { missing, loadBytes, slots };
  }

  /** True when nothing has been fetched over a link for so long that it needs a probe. */
  isStale(recordClass: RecordClass, vault: number): boolean {
    const link = this.#options.links[recordClass][vault];
    return link !== undefined && isStale(link.down);
  }

  #noBytes(): Bytes {
    const { kv, ssm } = this.#options.links;
    return { kv: new Float64Array(kv.length), ssm: new Float64Array(ssm.length) };
  }

  #pending(turn: number): Bytes {
    const bytes = this.#noBytes();
    const { fetcher } = this.#options;
    for (const of of ["kv", "ssm"] as const) {
      for (const vault of bytes[of].keys())
        bytes[of][vault] = fetcher.pendingBytes(of, vault, turn);
    }
    return bytes;
  }

  #isFirstPlaced(groups: readonly PrefetchGroup[], namespace: Namespace | null): boolean {
    const [group] = groups;
    if (group === undefined || namespace === null) return false;
    if (group.from >= group.hashes.length / HASH_BYTES) return false;
    const key = blockKey(namespace, group.group, hashAt(group, group.from));
    return this.#options.cache.isPlaced(key);
  }

  #isPlain(groups: readonly { group: number }[]): boolean {
    const [first] = groups;
    return (
      groups.length === 1 && first !== undefined && this.#options.shapeOf(first.group).tail === 0
    );
  }

  /** Seconds of computing that a full restore would save; null: not known, or restores are always wanted. */
  #gainS(span: Span): number | null {
    return this.#options.rates.isAlways ? null : this.computeS(span);
  }

  /** Seconds that computing takes, also where restores are always wanted; null: not known. */
  computeS({ start, end }: Span): number | null {
    const { prefill } = this.#options.rates;
    const whole = prefill.seconds(start, end);
    const rest = prefill.seconds(end, end);
    return whole === null || rest === null ? null : Math.max(0, whole - rest);
  }

  /** Offers the blocks in the arena; null where a part of the prompt is of no use. */
  #localOffer(ranges: readonly GroupRange[]): Offer | null {
    const [range] = ranges;
    if (range === undefined || !this.#isPlain(ranges)) return null;
    const { cache, shapeOf, sourceBytes } = this.#options;
    const { hashes, count, keyOf } = range;
    let run = 0;
    while (run < count && cache.isPlacedAt(hashes, run, keyOf)) run += 1;
    const tokens = (range.first + run) * shapeOf(range.group).tokens;
    return { tokens, fetchS: 0, loadBytes: run * sourceBytes(range.group) };
  }

  /** Offers the blocks before the first one that only an archive has; null where a part is of no use. */
  #nearOffer(ranges: readonly GroupRange[]): Offer | null {
    const [range] = ranges;
    if (range === undefined || !this.#isPlain(ranges)) return null;
    const end = this.#firstArchived(range);
    if (end === null || end === 0) return null;
    const tokens = (range.first + end) * this.#options.shapeOf(range.group).tokens;
    return this.#wholeOffer(tokens, cutRanges(ranges, tokens, this.#options.shapeOf));
  }

  /** Index of the first block that only an archive has and the arena has not; null: none. */
  #firstArchived({ offers, hashes, keyOf }: GroupRange): number | null {
    const { cache } = this.#options;
    for (const { first, end, archived } of offers) {
      if (archived === 0) continue;
      for (let at = first; at < end; at += 1) if (!cache.isPlacedAt(hashes, at, keyOf)) return at;
    }
    return null;
  }

  #wholeOffer(tokens: number, ranges: readonly GroupRange[]): Offer {
    const { cache, sourceBytes, blockBytes } = this.#options;
    const missing = this.#noBytes();
    const ahead = this.#pending(this.#options.fetcher.turnOf(ranges));
    const far = this.#noBytes();
    let loadBytes = 0;
    for (const { group, recordClass, count, hashes, keyOf, offers } of ranges) {
      loadBytes += count * sourceBytes(group);
      const bytes = blockBytes(group);
      for (const { first, end, vault, archived } of offers) {
        let [open, queued] = [0, 0];
        for (let at = first; at < end; at += 1) {
          if (cache.isPlacedAt(hashes, at, keyOf)) continue;
          open += 1;
          // Another plan has queued this block, so its bytes must not count twice.
          if (cache.isInUseAt(hashes, at, keyOf)) queued += 1;
        }
        add(missing[recordClass], vault, open * bytes);
        add(ahead[recordClass], vault, -queued * bytes);
        add(far[recordClass], vault, open * archived);
      }
    }
    return { tokens, fetchS: this.#fetchS(missing, ahead, far), loadBytes };
  }

  /** Seconds of the slowest vault, because all send at the same time; null: one of them is not known. */
  #fetchS(missing: Bytes, ahead: Bytes, far: Bytes | null = null): number | null {
    const { rates, links } = this.#options;
    let most = 0;
    for (const of of ["kv", "ssm"] as const) {
      for (const [vault, bytes] of missing[of].entries()) {
        const before = Math.max(0, ahead[of][vault] ?? 0);
        const link = links[of][vault] ?? null;
        const seconds = rates.fetchS(link, bytes, before);
        const farS = link === null ? 0 : link.farS(far?.[of][vault] ?? 0);
        if (seconds === null || farS === null) return null;
        most = Math.max(most, seconds + farS);
      }
    }
    return most;
  }
}

function add(sums: Float64Array, vault: number, more: number): void {
  sums[vault] = (sums[vault] ?? 0) + more;
}

/** Adds the records of blocks not yet reported to the scheduler that only archives have. */
function addArchivedLeft(records: Bytes, { ranges, runs }: Plan): void {
  for (const [at, { recordClass, offers }] of ranges.entries()) {
    const from = runs[at]?.placed ?? 0;
    for (const { first, end, vault, archived } of offers)
      add(records[recordClass], vault, Math.max(0, end - Math.max(first, from)) * archived);
  }
}
