// Owns the held Watch calls, one per sidecar and class: news of flushes and shares, and what each confirmed.
import type { handleUnaryCall } from "@grpc/grpc-js";
import { TierkvError } from "../../base/errors.ts";
import {
  FLUSH_CONFIRM_MS,
  NAME_BYTES_MAX,
  WATCH_HOLD_MS,
  WATCHERS_FORGET_MS,
  WATCHERS_MAX,
} from "../../base/limits/general.ts";
import { nowMs } from "../../base/time.ts";
import type { FlushedSidecar, WatchReply, WatchRequest } from "../../wire/messages.ts";
import { toGrpcStatus } from "../../wire/status.ts";
import type { FlushLog } from "./flush-log.ts";

interface Watcher {
  name: string;
  /** Number of the last flush that it confirmed. */
  flushed: number;
  /** Amounts it dropped for that flush. */
  dropped: { blocks: number; bytes: number; saves: number };
  seenMs: number;
  /** Answers the held call; null: none is held. */
  answer: (() => void) | null;
}

export class Watchers {
  readonly #log: FlushLog;
  readonly #epoch: number;
  readonly #shareBytes: () => number;
  /** By the id that each sidecar chose. */
  readonly #watchers = new Map<string, Watcher>();
  readonly #onConfirmed = new Set<() => void>();
  #isStopped = false;
  #isDraining = false;

  /** `shareBytes` returns the vault's weighted capacity in its pool. */
  constructor(log: FlushLog, epoch: number, shareBytes: () => number) {
    this.#log = log;
    this.#epoch = epoch;
    this.#shareBytes = shareBytes;
  }

  /** Answers at once where there is news, else with the next news or after WATCH_HOLD_MS. */
  readonly watch: handleUnaryCall<WatchRequest, WatchReply> = (call, callback) => {
    const { request } = call;
    try {
      if (request.leaving) {
        this.#watchers.get(request.client)?.answer?.();
        this.#watchers.delete(request.client);
        callback(null, this.#news(request.flushed));
        return;
      }
      if (this.#isStopped) throw new TierkvError("CLOSED", { what: "the vault" });
      const watcher = this.#enter(request);
      const end = (isGone: boolean): void => {
        if (watcher.answer !== answer) return;
        clearTimeout(timer);
        watcher.answer = null;
        watcher.seenMs = nowMs();
        if (isGone) return;
        if (this.#isStopped)
          callback(toGrpcStatus(new TierkvError("CLOSED", { what: "the vault" })));
        else callback(null, this.#news(request.flushed));
      };
      const answer = (): void => end(false);
      watcher.answer?.();
      watcher.answer = answer;
      const timer = setTimeout(answer, WATCH_HOLD_MS);
      call.once("cancelled", () => end(true));
      if (this.#isNews(request)) answer();
    } catch (error) {
      callback(toGrpcStatus(error));
    }
  };

  /** Whether the vault takes no new records. */
  get isDraining(): boolean {
    return this.#isDraining;
  }

  /** Answers all held calls; other sidecars learn it with their next call. */
  tellDraining(isDraining: boolean): void {
    this.#isDraining = isDraining;
    this.tellShare();
  }

  /** Answers all held calls, because the share has changed. */
  tellShare(): void {
    for (const { answer } of this.#watchers.values()) answer?.();
  }

  /** Announces flush `number`, then waits at most FLUSH_CONFIRM_MS for connected sidecars to confirm. */
  async tell(number: number): Promise<FlushedSidecar[]> {
    const told = [...this.#watchers.values()].filter(({ answer }) => answer !== null);
    // While an earlier flush is under way, its end announces both.
    if (this.#log.number >= number) for (const { answer } of told) answer?.();
    await new Promise<void>((resolve) => {
      const end = (): void => {
        clearTimeout(timer);
        this.#onConfirmed.delete(look);
        resolve();
      };
      const timer = setTimeout(end, FLUSH_CONFIRM_MS);
      const look = (): void => {
        if (told.every(({ flushed }) => flushed >= number)) end();
      };
      this.#onConfirmed.add(look);
      look();
    });
    this.#forgetOthers(null);
    return [...this.#watchers.values()].map(({ name, flushed, dropped, seenMs, answer }) => {
      const isConfirmed = flushed >= number;
      const nothing = { blocks: 0, bytes: 0, saves: 0 };
      const quietMs = answer === null ? Math.round(nowMs() - seenMs) : 0;
      return { name, confirmed: isConfirmed, quietMs, ...(isConfirmed ? dropped : nothing) };
    });
  }

  /** Answers all held calls with CLOSED, and refuses later ones the same way. */
  stop(): void {
    this.#isStopped = true;
    for (const { answer } of this.#watchers.values()) answer?.();
  }

  #news(flushed: number): WatchReply {
    const share = { draining: this.#isDraining, capacityBytes: this.#shareBytes() };
    return { epoch: this.#epoch, flushes: this.#log.since(flushed), ...share };
  }

  #isNews({ flushed, draining, capacityBytes }: WatchRequest): boolean {
    const isSame = this.#log.number === flushed && this.#isDraining === draining;
    return !isSame || (capacityBytes > 0 && capacityBytes !== this.#shareBytes());
  }

  /** Registers a caller and what it confirms. Throws OVERLOAD when too many watch. */
  #enter({ client, name: given, flushed, blocks, bytes, saves }: WatchRequest): Watcher {
    const name = given.slice(0, NAME_BYTES_MAX);
    if (client.length > NAME_BYTES_MAX) {
      throw new TierkvError("BAD_ARGUMENT", {
        reason: `a client id of ${client.length} characters`,
      });
    }
    this.#forgetOthers({ client, name });
    const known = this.#watchers.get(client);
    if (known === undefined && this.#watchers.size >= WATCHERS_MAX) this.#forgetQuietest();
    if (known === undefined && this.#watchers.size >= WATCHERS_MAX) {
      const limit = { count: this.#watchers.size, limit: WATCHERS_MAX };
      throw new TierkvError("OVERLOAD", { what: "sidecars that watch a vault", ...limit });
    }
    const watcher = known ?? { name, flushed, dropped: NOTHING, seenMs: 0, answer: null };
    watcher.seenMs = nowMs();
    if (flushed !== watcher.flushed) watcher.dropped = { blocks, bytes, saves };
    watcher.flushed = flushed;
    this.#watchers.set(client, watcher);
    for (const look of this.#onConfirmed) look();
    return watcher;
  }

  /** Forgets the unconnected sidecar that was not heard of for longest, because a new one must hear of flushes. */
  #forgetQuietest(): void {
    const quiet = [...this.#watchers].filter(([, { answer }]) => answer === null);
    const [first] = quiet.toSorted(([, a], [, b]) => a.seenMs - b.seenMs);
    if (first !== undefined) this.#watchers.delete(first[0]);
  }

  /** Forgets sidecars that left without notice: silent for long, or replaced by `newcomer` of the same name. */
  #forgetOthers(newcomer: { client: string; name: string } | null): void {
    for (const [client, { name, answer, seenMs }] of this.#watchers) {
      if (answer !== null || client === newcomer?.client) continue;
      const isOld = nowMs() - seenMs > WATCHERS_FORGET_MS;
      if (isOld || name === newcomer?.name) this.#watchers.delete(client);
    }
  }
}

const NOTHING = { blocks: 0, bytes: 0, saves: 0 };
