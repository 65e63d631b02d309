// Owns the queue for room in the arena: a plan begins when all its blocks fit, awaited plans first, then in order of arrival.
import { KEYS_PER_SLICE, RECLAIM_ANSWER_MS } from "../../base/limits/general.ts";
import { nowMs, soon, yieldToLoop } from "../../base/time.ts";
import type { BlockCache } from "../slots/block-cache.ts";
import type { ArenaContext } from "./arena-context.ts";
import type { Plan } from "./plan.ts";

export interface AdmissionOptions {
  /** Returns the plans that the scheduler has not released, the oldest first. */
  plans(): Iterable<Plan>;
  /** Takes the plan's blocks into use. */
  begin(plan: Plan, context: ArenaContext): Promise<void>;
  /** Asks the scheduler for the slots of a finished plan whose blocks it may not have used. */
  reclaim(plan: Plan): void;
  onFailure(error: unknown): void;
}

export class Admission {
  readonly #options: AdmissionOptions;
  #context: ArenaContext | null = null;
  #queue: Plan[] = [];
  #isAdmitting = false;
  #isAsked = false;
  #retry: NodeJS.Timeout | undefined;

  constructor(options: AdmissionOptions) {
    this.#options = options;
  }

  /** Begins at once where the plan takes no new slot; otherwise queues it. */
  async enter(plan: Plan, context: ArenaContext): Promise<void> {
    this.#context = context;
    plan.state = "queued";
    if ((await roomNeeded(plan, context.cache)) === 0) {
      await this.#options.begin(plan, context);
      return;
    }
    this.#queue.push(plan);
    this.onRoom();
  }

  /** Called when more blocks may be taken than before. */
  onRoom(): void {
    if (this.#isAsked || this.#queue.length === 0) return;
    this.#isAsked = true;
    soon(() => {
      this.#isAsked = false;
      this.#admit().catch((error: unknown) => this.#options.onFailure(error));
    });
  }

  leave(plan: Plan): void {
    this.#queue = this.#queue.filter((other) => other !== plan);
  }

  close(): void {
    clearTimeout(this.#retry);
  }

  /** Admits whole plans only, because two half-placed plans could wait for each other. */
  async #admit(): Promise<void> {
    const context = this.#context;
    if (this.#isAdmitting || context === null) return;
    this.#isAdmitting = true;
    try {
      for (let plan = this.#next(); plan !== undefined; plan = this.#next()) {
        const short = (await roomNeeded(plan, context.cache)) - context.cache.room;
        if (short > 0 && !plan.isOver) {
          // Otherwise two hand-offs could wait for the room of each other's early blocks.
          for (const queued of this.#queue) queued.leaveEarly();
          if (plan.isAsked) this.#askBack(short);
          return;
        }
        await this.#options.begin(plan, context);
        this.leave(plan);
      }
    } finally {
      this.#isAdmitting = false;
    }
  }

  #next(): Plan | undefined {
    const ready = this.#queue.filter((plan) => this.#mayBegin(plan));
    return ready.find(({ isAsked }) => isAsked) ?? ready[0];
  }

  /** False for a prompt larger than the arena that the engine could not begin yet, or while another one passes through. */
  #mayBegin({ depth, isAsked }: Plan): boolean {
    if (depth === null) return true;
    if (!isAsked) return false;
    for (const other of this.#options.plans()) {
      if (other.depth !== null && other.state === "fetching") return false;
    }
    return true;
  }

  /** Asks the newest plans first, because the engine admits requests about in order of arrival. */
  #askBack(short: number): void {
    let missing = short;
    for (const plan of [...this.#options.plans()].toReversed()) {
      if (missing <= 0) break;
      if (plan.isAsked || plan.state !== "done" || plan.blockCount === 0) continue;
      if (plan.reclaimAskedMs === null) {
        plan.reclaimAskedMs = nowMs();
        this.#options.reclaim(plan);
        missing -= plan.blockCount;
      } else if (nowMs() - plan.reclaimAskedMs < RECLAIM_ANSWER_MS) {
        missing -= plan.blockCount;
      }
    }
    clearTimeout(this.#retry);
    this.#retry = setTimeout(() => this.onRoom(), RECLAIM_ANSWER_MS);
  }
}

/** Returns how many blocks the plan needs at first that no plan uses yet. */
async function roomNeeded({ ranges, depth }: Plan, cache: BlockCache): Promise<number> {
  let needed = 0;
  let seen = 0;
  // Any of its blocks may be its first window by the time another plan gives room.
  if (depth !== null) return depth;
  for (const { count, hashes, keyOf } of ranges) {
    for (let at = 0; at < count; at += 1) {
      if (!cache.isInUseAt(hashes, at, keyOf)) needed += 1;
      seen += 1;
      if (seen % KEYS_PER_SLICE === 0) await yieldToLoop();
    }
  }
  return needed;
}
