// Owns the sidecar's links to its vaults, and a gate that bounds the look-ups under way at each vault.
import type { Namespace, RecordClass } from "../../base/block.ts";
import { LOOKUPS_IN_FLIGHT_MAX } from "../../base/limits/general.ts";
import { nowMs } from "../../base/time.ts";
import { OF_A_REQUEST } from "../../client/source.ts";
import type { BlockSource, BlockStore, Offer, Purpose, Tier } from "../../client/source.ts";
import { Link } from "../../cost/link.ts";
import type { VaultClients } from "./pools.ts";

/** Lets a burst of look-ups through a few at a time, because the client refuses calls above its own limit. */
export class LookupGate {
  readonly #client: BlockStore;
  readonly #link: Link;
  readonly #waiting: (() => void)[] = [];
  #inFlight = 0;
  /** Blocks missing at the vault although a deeper block is held: evicted or lost there. */
  holes = 0;
  /** Blocks found here although another vault owns them by now. */
  moved = 0;

  constructor(client: BlockStore, link: Link) {
    this.#client = client;
    this.#link = link;
  }

  get state(): BlockStore["state"] {
    return this.#client.state;
  }

  /** Whether it is not used for a refusal, by its own verdict or by this machine's, until that is mended. */
  get isRefused(): boolean {
    return this.#client.state === "refused" || this.#client.isRefusing === true;
  }

  get tier(): Tier {
    return this.#client.tier;
  }

  get address(): string {
    return this.#client.address;
  }

  /** Whether an offer's source is the vault, and no slower one behind it. */
  isItself(source: BlockSource): boolean {
    return source === this.#client;
  }

  /** True when a recent round-trip time is known. */
  get isPaced(): boolean {
    return !this.#link.isUnasked && this.#link.roundTripMs(0) !== null;
  }

  /** Returns null when the answer is no longer wanted at its turn. Waiting calls are bounded by the open plans. */
  async find(
    namespace: Namespace,
    keys: Buffer,
    timeoutMs: number,
    isWanted: () => boolean,
    purpose: Purpose = OF_A_REQUEST,
  ): Promise<readonly Offer[] | null> {
    if (this.#inFlight >= LOOKUPS_IN_FLIGHT_MAX) {
      await new Promise<void>((resolve) => {
        this.#waiting.push(resolve);
      });
    } else {
      this.#inFlight += 1;
    }
    try {
      if (!isWanted()) return null;
      const askedMs = nowMs();
      const offers = await this.#client.find(namespace, keys, timeoutMs, purpose);
      this.#link.answered(keys.length, nowMs() - askedMs);
      const archived = offers.find(({ source }) => source !== this.#client);
      if (archived !== undefined) this.#link.farPace = archived.cost;
      return offers;
    } finally {
      // A waiting call takes the place over; without one it is freed.
      const next = this.#waiting.shift();
      if (next === undefined) this.#inFlight -= 1;
      else next();
    }
  }
}

/** One gate per vault of each class, in the order of the configuration. */
export type LookupGates = Readonly<Record<RecordClass, readonly LookupGate[]>>;

/** One link per vault, in the same order. */
export type Links = Readonly<Record<RecordClass, readonly Link[]>>;

export function openLinks(vaults: VaultClients): Links {
  const linkOf = (client: BlockStore): Link => new Link(client);
  return { kv: vaults.kv.map(linkOf), ssm: vaults.ssm.map(linkOf) };
}

export function openGates(vaults: VaultClients, links: Links): LookupGates {
  const gates = (recordClass: RecordClass): LookupGate[] =>
    vaults[recordClass].flatMap((client, at) => {
      const link = links[recordClass][at];
      return link === undefined ? [] : [new LookupGate(client, link)];
    });
  return { kv: gates("kv"), ssm: gates("ssm") };
}
