// Owns the calls of Pool, each held until the pool's list of vaults changes.
import type { handleUnaryCall } from "@grpc/grpc-js";
import { TierkvError } from "../../base/errors.ts";
import { WATCH_HOLD_MS, WATCHERS_MAX } from "../../base/limits/general.ts";
import type { Gossip } from "../../discovery/gossip.ts";
import type * as m from "../../wire/messages.ts";
import { toGrpcStatus } from "../../wire/status.ts";

const NONE: m.PoolReply = { key: Buffer.alloc(0), mark: 0, epoch: 0, vaults: [] };

export class PoolCalls {
  readonly #gossip: Gossip | null;
  readonly #epoch: number;
  readonly #held = new Set<() => void>();
  #isStopped = false;

  constructor(gossip: Gossip | null, epoch: number) {
    this.#gossip = gossip;
    this.#epoch = epoch;
    gossip?.listen(() => this.#answerAll());
  }

  /** Answers at once when the caller's list is outdated, else on the next change or after WATCH_HOLD_MS. */
  readonly pool: handleUnaryCall<m.PoolRequest, m.PoolReply> = (call, callback) => {
    const { mark, epoch } = call.request;
    const answer = (): void => {
      clearTimeout(timer);
      if (this.#held.delete(answer)) callback(null, this.#list());
    };
    const timer = setTimeout(answer, WATCH_HOLD_MS);
    if (this.#held.size >= WATCHERS_MAX) {
      clearTimeout(timer);
      const limit = { count: this.#held.size, limit: WATCHERS_MAX };
      callback(toGrpcStatus(new TierkvError("OVERLOAD", { what: "calls of Pool", ...limit })));
      return;
    }
    this.#held.add(answer);
    call.once("cancelled", () => {
      clearTimeout(timer);
      this.#held.delete(answer);
    });
    const isNews = epoch !== this.#epoch || mark !== this.#gossip?.book.mark;
    if (isNews || this.#isStopped) answer();
  };

  /** Answers all held calls, and holds none from now on. */
  stop(): void {
    this.#isStopped = true;
    this.#answerAll();
  }

  #answerAll(): void {
    for (const answer of this.#held) answer();
  }

  #list(): m.PoolReply {
    if (this.#gossip === null) return NONE;
    const { book } = this.#gossip;
    const { publicKey: key, mark } = book;
    return { key, mark, epoch: this.#epoch, vaults: book.all("vault") };
  }
}
