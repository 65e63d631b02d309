// Owns the restores of one engine: plans are looked up, admitted, fetched prefix first, and report their placed blocks.
import { HASH_BYTES } from "../../base/block.ts";
import type { Namespace } from "../../base/block.ts";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { failpoint } from "../../base/failpoint.ts";
import { STALL_SHARE_MAX } from "../../base/limits/cost.ts";
import {
  KEYS_PER_SLICE,
  PLAN_KEYS_MAX,
  PLAN_KEYS_OPEN_MAX,
  PLANS_MAX,
} from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import type { SidecarCounters } from "../../base/metrics.ts";
import { nowMs, soon, yieldToLoop } from "../../base/time.ts";
import type { Block } from "../slots/block.ts";
import type {
  Answered,
  DoneReason,
  Loaded,
  Prefetch,
  Release,
  SidecarMessage,
} from "../socket/messages.ts";
import { whyNoMore } from "../socket/reasons.ts";
import type { BlockOutcomes } from "../trace/block-outcomes.ts";
import type { Decisions } from "../trace/decisions.ts";
import type { Reuse } from "../trace/reuse.ts";
import type { Pools } from "../vaults/pools.ts";
import type { Quarantine } from "../vaults/quarantine.ts";
import type { LookupGate, LookupGates } from "../vaults/vaults.ts";
import { Admission } from "./admission.ts";
import type { ArenaContext } from "./arena-context.ts";
import { askedOf, chooseBoundary } from "./boundary.ts";
import type { Asked, Boundary } from "./boundary.ts";
import { copiedRuns } from "./copied-run.ts";
import { untilHandedOver } from "./handoff.ts";
import { knownAnswer, settleKnown } from "./known.ts";
import { probeLink } from "./link-probe.ts";
import type { LookupAnswer } from "./lookup-answer.ts";
import { lookUp } from "./lookup.ts";
import { gapOf, whyMissing } from "./misses.ts";
import { doneReason, Plan, Run, share } from "./plan.ts";
import type { Placed } from "./plan.ts";
import type { Receipts } from "./receipts.ts";
import { Recut } from "./recut.ts";
import { TooLong } from "./too-long.ts";
import { Waiting } from "./waiting.ts";
import { capacityOf, depthOf, Feed, isLoadable, mayLoad } from "./windows.ts";
import { Worth } from "./worth.ts";

type Held = Extract<SidecarMessage, { t: "held" }>;
type Done = Extract<SidecarMessage, { t: "done" }>;

export interface RestorerOptions {
  engine: string;
  shards: number;
  decisions: Decisions;
  reuse: Reuse;
  receipts: Receipts;
  outcomes: BlockOutcomes;
  quarantine: Quarantine;
  pools: Pools;
  gates: LookupGates;
  waitMs: number;
  stallMs: number;
  /** True where the engine loads blocks as they come, and computes the ones that do not. */
  isWindowed(): boolean;
  counters: SidecarCounters;
  logger: Logger;
  send(...messages: readonly SidecarMessage[]): void;
}

export class Restorer {
  readonly #options: RestorerOptions;
  readonly #tooLong: TooLong;
  readonly #admission: Admission;
  readonly #worth: Worth;
  readonly #waiting: Waiting;
  readonly #plans = new Map<number, Plan>();
  /** The latest plan that an engine without other requests has loaded, until its request has a token; null: none. */
  #unanswered: { number: number; restTokens: number; tookS: number } | null = null;
  readonly #changed = new Set<Plan>();
  #context: ArenaContext | null = null;
  #isFlushing = false;
  #openKeys = 0;
  /** null until the scheduler has computed it; nothing can be looked up before. */
  namespace: Namespace | null = null;

  constructor(options: RestorerOptions) {
    this.#options = options;
    this.#tooLong = new TooLong(options);
    const { waitMs } = options;
    this.#worth = new Worth({ costs: () => this.#context?.costs ?? null, waitMs });
    this.#waiting = new Waiting({
      worth: this.#worth,
      finish: (plan, reason) => this.#finish(plan, reason),
      send: options.send,
    });
    this.#admission = new Admission({
      plans: () => this.#plans.values(),
      begin: async (plan, context) => {
        if (plan.depth === null) await this.#begin(plan, context);
        else this.#beginWindows(plan, context);
      },
      reclaim: ({ req, number }) => {
        options.counters.add("reclaims");
        options.send({ t: "reclaim", req, plan: number });
      },
      onFailure: (error) => this.#logFailure(error),
    });
  }

  get planCount(): number {
    return this.#plans.size;
  }

  /** Called once all ranks have mapped the arena and slots exist. */
  open(context: ArenaContext): void {
    this.#context = context;
  }

  /** Called when more blocks may be taken than before. */
  onRoom(): void {
    this.#admission.onRoom();
  }

  prefetch(question: Prefetch): void {
    const { counters, shards } = this.#options;
    counters.add("prefetch_requests");
    const message = this.#tooLong.cut(question, this.#context);
    const { req, plan: number, groups } = message;
    if (this.#plans.has(number)) {
      throw new TierkvError("BAD_FRAME", {
        peer: `request ${req.slice(0, 64)}`,
        reason: `plan = ${number}: it is in use; expected a new number for each plan`,
      });
    }
    const keys = groups.reduce((sum, { hashes }) => sum + hashes.length / HASH_BYTES, 0) * shards;
    if (
      this.#plans.size >= PLANS_MAX ||
      keys > Math.min(PLAN_KEYS_MAX, PLAN_KEYS_OPEN_MAX - this.#openKeys)
    ) {
      counters.add("plan_overload");
      this.#options.decisions.refused(this.#options.engine, message, "overload");
      this.#options.send({ t: "done", req, plan: number, reason: "overload" });
      return;
    }
    const plan = this.#newPlan(message, keys);
    this.#plans.set(number, plan);
    this.#openKeys += keys;
    this.#lookUp(plan, message).catch((error: unknown) => {
      this.#logFailure(error);
      this.#finish(plan, "vault_down");
    });
  }

  #newPlan(message: Prefetch, openKeys: number): Plan {
    const { req, plan: number, groups } = message;
    const { decisions, engine } = this.#options;
    const span = this.#context?.costs.spanOf(groups) ?? { start: 0, end: 0 };
    const block = groups[0]?.hashes.subarray(-HASH_BYTES).toString("hex") ?? "";
    return new Plan({
      req,
      number,
      openKeys,
      namespace: this.namespace,
      receipt: this.#options.receipts.nameOf(message.receipt, message.longer === null),
      ahead: message.ahead,
      span,
      account: decisions.open(engine, message, block, span),
      budget: { ms: this.#options.waitMs, reason: "deadline" },
      isHandedOver: message.handoff > 0,
    });
  }

  /** Moves a plan before others, because the engine could take its request now. An unknown number has ended. */
  askedFor(number: number): void {
    const plan = this.#plans.get(number);
    if (plan === undefined) return;
    this.#context?.costs.began(plan);
    this.#waiting.begin(plan);
    if (plan.state === "queued") this.onRoom();
  }

  #logFailure(error: unknown): void {
    this.#options.logger.error({ err: toTierkvError(error) }, "a restore failed");
  }

  /** Frees the slots of blocks that the engine has loaded; a large prompt's next ones take their place. */
  loaded({ plan: number, tokens }: Omit<Loaded, "t" | "req">): void {
    const plan = this.#plans.get(number);
    const [run] = plan?.runs ?? [];
    const context = this.#context;
    if (plan === undefined || run === undefined || context === null) return;
    const blocks = Math.floor(tokens / context.shapeOf(run.group).tokens) - run.first;
    run.passTo(blocks, plan.depth !== null);
    if (plan.isOver) return;
    plan.feed?.fill();
    this.#onChange(plan);
  }

  /** Ends a plan for the scheduler; its blocks stay for later ones. An unknown number is ignored. */
  release(released: Omit<Release, "t" | "req">): void {
    const { plan: number, tokens, loadUs, tookUs } = released;
    const plan = this.#plans.get(number);
    if (plan === undefined) return;
    this.#plans.delete(number);
    // A request that never got blocks says nothing about the queue by its wait.
    if (released.isBegun) this.#context?.costs.began(plan);
    const costs = this.#context?.costs;
    if (tokens > 0) costs?.loaded(plan, tokens, { copyS: loadUs / 1e6, tookS: tookUs / 1e6 });
    const prefillS = costs?.prefillS(plan, tokens) ?? null;
    plan.case.released(tokens, tokens > 0 ? loadUs / 1000 : null, prefillS, released.why);
    // Only an engine without other requests says how long it took, and only that one answers next.
    const restTokens = released.from + tokens;
    this.#unanswered = tookUs === 0 ? null : { number, restTokens, tookS: tookUs / 1e6 };
    plan.isReleased = true;
    this.#options.receipts.restored(plan, released, this.#context);
    this.#settle(plan);
    for (const run of plan.runs) run.leaveAll();
    this.onRoom();
  }

  /** Learns what a restored request took beside look-up, load and computing; an answer to another plan is ignored. */
  answered({ plan, tokens, us }: Omit<Answered, "t" | "req">): void {
    const of = this.#unanswered;
    this.#unanswered = null;
    if (of?.number !== plan) return;
    this.#context?.costs.answered({ ...of, promptTokens: tokens, answeredS: us / 1e6 });
  }

  close(): void {
    this.#admission.close();
    this.#waiting.close();
    const nothing = { from: 0, tokens: 0, loadUs: 0, tookUs: 0, isBegun: false, why: "" };
    for (const plan of this.#plans.keys()) this.release({ plan, ...nothing });
  }

  async #lookUp(plan: Plan, message: Prefetch): Promise<void> {
    const { namespace } = plan;
    if (namespace === null) {
      this.#finish(plan, "not_ready");
      return;
    }
    if (this.#options.quarantine.has(namespace)) {
      this.#finish(plan, "quarantined");
      return;
    }
    const startedMs = nowMs();
    if (!this.#mayAsk(plan, message)) return;
    const answer = await this.#answer(plan, message, namespace);
    await failpoint("sidecar.restore.found");
    if (plan.isOver) return;
    const { req, number } = plan;
    const groups = message.groups.map(({ group }, index) => ({
      group,
      held: answer.groups[index]?.held ?? Buffer.alloc(0),
    }));
    const context = this.#context;
    if (context === null) {
      this.#options.send({ t: "held", req, plan: number, groups, tokens: 0 });
      this.#finish(plan, "not_ready");
      return;
    }
    const asked = askedOf(message, context.shapeOf);
    plan.isLoadable = this.#options.isWindowed() && isLoadable(plan, message, context.shapeOf);
    const boundary = chooseBoundary(asked, answer, capacityOf(plan, context));
    this.#account(plan, asked, answer, boundary);
    this.#tooLong.weighRoom(plan, asked, boundary, context);
    plan.case.decided(this.#worth.ofRestoring(plan, boundary, context.costs));
    plan.depth = depthOf(plan, context);
    const { tokens, windows } = plan;
    const computeS = context.costs.computeS({ start: plan.span.start, end: tokens });
    plan.case.passes(windows);
    const held: Held = { t: "held", req, plan: number, groups, tokens, windows };
    if (computeS !== null) {
      held.compute_ms = Math.round(computeS * 1000);
      plan.patienceMs = held.compute_ms * STALL_SHARE_MAX;
    }
    this.#options.send(held);
    this.#options.reuse.answered(namespace, asked, answer, this.#options.outcomes);
    if (plan.isRefused) {
      this.#finish(plan, "slower");
      probeLink(context, namespace, boundary.ranges);
      return;
    }
    this.#waiting.limit(plan, this.#worth.ofWaiting(plan, plan.isAsked ? nowMs() - startedMs : 0));
    await this.#admission.enter(plan, context);
  }

  /** Looks up the held blocks; for a hand-off, until they are held. */
  async #answer(plan: Plan, message: Prefetch, namespace: Namespace): Promise<LookupAnswer> {
    const { shards, pools, gates, counters, logger, waitMs, stallMs, quarantine } = this.#options;
    const { groups, tenant } = message;
    const context = this.#context;
    const isWanted = (): boolean => !plan.isOver;
    const known = knownAnswer(plan, message, context, this.#options);
    if (known !== null) return known;
    const timeoutMs = Math.min(stallMs, waitMs);
    const trace = plan.case.trace?.lookup ?? null;
    const asks = { timeoutMs, trace, tenant, counters, logger };
    const of = { namespace, shards, pools, gates, isWanted, ...asks };
    const look = (): Promise<LookupAnswer> =>
      lookUp(groups, { ...of, cache: this.#context?.cache ?? null });
    if (!plan.isHandedOver || context === null) return look();
    const recut = Recut.of({ plan, message, arena: context, lookup: of, quarantine });
    return untilHandedOver({ plan, message, context, look, recut, waitMs, stallMs, counters });
  }

  /** False when the plan is over, because computing answers before vaults would. Otherwise the look-up gets the time it is worth. */
  #mayAsk(plan: Plan, { groups }: Prefetch): boolean {
    const worth = this.#worth.ofAsking(plan, groups);
    if (worth === null || "ms" in worth) {
      this.#waiting.limit(plan, worth);
      return true;
    }
    plan.case.decided(worth);
    this.#finish(plan, "slower");
    return false;
  }

  #account(
    plan: Plan,
    asked: readonly Asked[],
    answer: LookupAnswer,
    { heldTokens: tokens }: Boundary,
  ): void {
    const isMissing = tokens < plan.span.end && plan.namespace !== null;
    const why = isMissing
      ? whyMissing(plan.namespace, asked, answer, { ...this.#options, tokens })
      : null;
    plan.case.lookedUp(tokens, why, isMissing ? gapOf(asked, answer, this.#options) : null);
  }

  /** Takes all blocks of the plan into use, and queues the ones that no plan has fetched or is fetching. */
  async #begin(plan: Plan, { cache, fetcher }: ArenaContext): Promise<void> {
    const { namespace } = plan;
    if (namespace === null) return;
    let seen = 0;
    plan.turn = fetcher.turnOf(plan.ranges);
    for (const range of plan.ranges) {
      const run = new Run(range, cache, () => this.#onChange(plan), plan);
      plan.runs.push(run);
      for (const { run: copied, at, count } of copiedRuns(namespace, range)) {
        for (let index = 0; index < count; index += 1) {
          const block = cache.use(range.keyOf(at + index), copied, index, run);
          run.add(block);
          if (block.state === "wanted" && block.userCount === 1) fetcher.add(block, plan.turn);
          seen += 1;
          if (seen % KEYS_PER_SLICE === 0) await yieldToLoop();
          if (!plan.isOver) continue;
          // Blocks reported to the scheduler are its own until it releases the plan.
          if (plan.isReleased) run.leaveAll();
          else run.end("deadline");
          return;
        }
      }
    }
    plan.leaveEarly();
    if (plan.isOver) return;
    plan.state = "fetching";
    this.#onChange(plan);
  }

  /** Takes the first blocks of a prompt larger than the arena into use. */
  #beginWindows(plan: Plan, context: ArenaContext): void {
    const { namespace } = plan;
    const [range] = plan.ranges;
    if (namespace === null || range === undefined || plan.isOver) return;
    this.#options.counters.add("plans_windowed");
    plan.turn = context.fetcher.turnOf(plan.ranges);
    const onChange = (): void => this.#onChange(plan);
    const run = new Run(range, context.cache, onChange, plan);
    plan.runs.push(run);
    plan.feed = new Feed(namespace, plan, range, run, context);
    plan.feed.fill();
    plan.state = "fetching";
    this.#onChange(plan);
  }

  #onChange(plan: Plan): void {
    this.#changed.add(plan);
    if (this.#isFlushing) return;
    this.#isFlushing = true;
    // A turn of the event loop for each of a short restore's steps would take as long as the steps.
    soon(() => {
      this.#isFlushing = false;
      const plans = [...this.#changed];
      this.#changed.clear();
      for (const changed of plans) this.#report(changed);
    });
  }

  /** Reports to the scheduler the blocks placed since the last time, and the end once it is reached. */
  #report(plan: Plan): void {
    if (plan.isOver || plan.state !== "fetching") return;
    const placed = plan.runs.flatMap((run) => this.#placed(plan, run.advance()));
    if (plan.runs.every((run) => run.isComplete)) {
      this.#finish(plan, doneReason(plan.runs.map((run) => run.cut)), placed);
    } else {
      this.#options.send(...placed, ...this.#toLoad(plan));
    }
  }

  /** Tells the engine once that it may load what is placed while the rest comes. */
  #toLoad(plan: Plan): SidecarMessage[] {
    const { req, number } = plan;
    if (!mayLoad(plan, this.#context)) return [];
    plan.isLoading = true;
    this.#options.counters.add("plans_loaded_early");
    return [{ t: "load", req, plan: number }];
  }

  /** Returns the message that tells the scheduler which blocks are placed, and counts them. */
  #placed(plan: Plan, placed: Placed | null): SidecarMessage[] {
    if (placed === null) return [];
    const { group, first, slots, blocks } = placed;
    const { counters } = this.#options;
    const fresh = share(blocks);
    const local = blocks.length - fresh.length;
    if (local > 0) counters.add("blocks_restored_local", local);
    for (const [gate, count] of this.#gatesOf(fresh)) {
      const tier = gate?.tier ?? "vault";
      counters.add(`blocks_restored_${tier}`, count);
      plan.case.fetched(tier, count, gate?.address ?? "");
    }
    const bytes = blocks.length * (this.#context?.sourceBytes(group) ?? 0);
    plan.case.placed(bytes);
    counters.add("bytes_restored", bytes);
    return [{ t: "placed", req: plan.req, plan: plan.number, group, first, slots, local }];
  }

  /** Counts blocks by the gate of the vault that they came from. */
  #gatesOf(blocks: readonly Block[]): Map<LookupGate | undefined, number> {
    const counts = new Map<LookupGate | undefined, number>();
    for (const { recordClass, owner } of blocks) {
      const gate = this.#options.gates[recordClass][owner];
      counts.set(gate, (counts.get(gate) ?? 0) + 1);
    }
    return counts;
  }

  /** Ends a plan; `placed` is sent before the end. */
  #finish(plan: Plan, reason: DoneReason, placed: readonly SidecarMessage[] = []): void {
    if (plan.isOver) return;
    // Blocks placed in this event-loop tick still count.
    const last = plan.runs.flatMap((run) => {
      const more = this.#placed(plan, run.advance());
      run.end(reason);
      return more;
    });
    const context = this.#context;
    const tokens = context?.costs.placedTokens(plan) ?? 0;
    const correction =
      context === null ? [] : settleKnown(plan, tokens, context.cache, this.#options.counters);
    plan.state = "done";
    plan.case.ended(reason, tokens);
    this.#settle(plan);
    this.#options.counters.add(`plan_${reason}`);
    const { req, number, case: account } = plan;
    const done: Done = { t: "done", req, plan: number, reason };
    const why = whyNoMore(account.whyNot, reason, account.account.miss);
    if (why !== null) done.why = why;
    this.#options.send(...placed, ...last, ...correction, done);
    this.onRoom();
  }

  /** Releases everything that only an open plan holds. */
  #settle(plan: Plan): void {
    this.#waiting.end(plan);
    plan.leaveEarly();
    this.#openKeys -= plan.openKeys;
    plan.openKeys = 0;
    plan.ranges = [];
    this.#changed.delete(plan);
    this.#admission.leave(plan);
  }
}
