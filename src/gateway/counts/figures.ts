// Owns the gateway's metrics, and the text that Prometheus scrapes.
import { Counter, Gauge, Histogram, Registry } from "prom-client";
import type { Engine } from "../engines/engine.ts";
import type { Fleet } from "../engines/fleet.ts";
import type { EventFeed } from "../events/feed.ts";
import type { Agreement } from "../hashes/agreement.ts";
import type { BlockIndex, Tier } from "../index/index-of-blocks.ts";
import type { Maker } from "../tokens/tokenizer.ts";
import type { LookupOutcome } from "../vaults/lookups.ts";

const SECONDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];

/** A look-up takes a third of a millisecond on an idle machine. */
const LOOKUP_SECONDS = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 1];

/** The feed and the hash agreement of each engine; null: the engine's events are not followed. */
export interface Following {
  feedOf(engine: Engine): EventFeed | null;
  agreementOf(engine: Engine): Agreement | null;
  /** Number of blocks that the engine reported. */
  blocksOf(engine: Engine, tier: Tier): number;
}

export class Figures {
  readonly #registry = new Registry();
  readonly #requests: Counter<"engine" | "code">;
  readonly #refused: Counter<"reason">;
  readonly #retries: Counter<"engine">;
  readonly #broken: Counter<"engine">;
  readonly #handoffs: Counter<"engine" | "outcome">;
  readonly #gone: Counter;
  readonly #lookups: Histogram<"outcome">;
  readonly #tokenized: Counter<"by">;
  readonly #firstByte: Histogram<"engine">;

  /** Gauges read `fleet` at each scrape. */
  constructor(fleet: Fleet, following: Following, index: BlockIndex) {
    const registers = [this.#registry];
    const counter = <Label extends string>(
      name: string,
      help: string,
      labelNames: Label[],
    ): Counter<Label> => new Counter({ name, help, labelNames, registers });
    this.#requests = counter(
      "tierkv_gateway_requests_total",
      "Answers that an engine began, by HTTP status.",
      ["engine", "code"],
    );
    this.#refused = counter(
      "tierkv_gateway_refused_total",
      "Requests that the gateway itself answered with an error, by reason.",
      ["reason"],
    );
    this.#retries = counter(
      "tierkv_gateway_retries_total",
      "Requests sent again, usually to another engine, by the engine that failed.",
      ["engine"],
    );
    this.#broken = counter(
      "tierkv_gateway_answers_broken_total",
      "Answers that an engine aborted after the first byte.",
      ["engine"],
    );
    this.#handoffs = counter(
      "tierkv_gateway_handoffs_total",
      "Prompts that one engine computed for another, by outcome: `handed_over`, or `failed` and computed by the answering engine.",
      ["engine", "outcome"],
    );
    this.#gone = counter(
      "tierkv_gateway_clients_gone_total",
      "Clients that disconnected before their answer was complete.",
      [],
    );
    this.#tokenized = counter(
      "tierkv_gateway_tokenized_total",
      "Prompts by who tokenized them: `gateway`, `engine`, or `nobody`, so that load decided.",
      ["by"],
    );
    this.#firstByte = new Histogram({
      name: "tierkv_gateway_time_to_first_byte_seconds",
      help: "Time from a request's arrival to the first byte of its answer, in seconds.",
      labelNames: ["engine"],
      buckets: SECONDS,
      registers,
    });
    this.#lookups = new Histogram({
      name: "tierkv_gateway_vault_lookup_seconds",
      help: "Time to look up a prompt in vaults, in seconds, by outcome: `found`, `nothing`, `late` (after the decision) or `failed`.",
      labelNames: ["outcome"],
      buckets: LOOKUP_SECONDS,
      registers,
    });
    registerGauges(registers, fleet, following, index);
  }

  began(engine: string, code: number, seconds: number): void {
    this.#requests.inc({ engine, code: String(code) });
    this.#firstByte.observe({ engine }, seconds);
  }

  refused(reason: string): void {
    this.#refused.inc({ reason });
  }

  retried(engine: string): void {
    this.#retries.inc({ engine });
  }

  broken(engine: string): void {
    this.#broken.inc({ engine });
  }

  handedOver(engine: string, isDone: boolean): void {
    this.#handoffs.inc({ engine, outcome: isDone ? "handed_over" : "failed" });
  }

  lookedUp(outcome: LookupOutcome, seconds: number): void {
    this.#lookups.observe({ outcome }, seconds);
  }

  gone(): void {
    this.#gone.inc();
  }

  tokenized(by: Maker): void {
    this.#tokenized.inc({ by });
  }

  /** Removes the series of an engine that left, because names that come and go would add up. */
  async forget(engine: string): Promise<void> {
    for (const counter of [this.#requests, this.#retries, this.#broken, this.#handoffs]) {
      const { values } = await counter.get();
      for (const { labels } of values) if (labels.engine === engine) counter.remove(labels);
    }
    this.#firstByte.remove({ engine });
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  /** Returns the text that Prometheus scrapes. */
  text(): Promise<string> {
    return this.#registry.metrics();
  }
}

const AGREED = { learning: 0, agreed: 1, off: -1 } as const;

/** Registers gauges that read their values at each scrape. */
function registerGauges(
  registers: Registry[],
  fleet: Fleet,
  following: Following,
  index: BlockIndex,
): void {
  const gauge = (name: string, help: string, valueOf: () => number): void =>
    void new Gauge({
      name,
      help,
      registers,
      collect(): void {
        this.set(valueOf());
      },
    });
  const perEngine = (name: string, help: string, valueOf: (engine: Engine) => number): void =>
    void new Gauge({
      name,
      help,
      labelNames: ["engine"],
      registers,
      collect(): void {
        // Drops the series of engines that left.
        this.reset();
        for (const engine of fleet.engines) this.set({ engine: engine.name }, valueOf(engine));
      },
    });
  perEngine("tierkv_gateway_engine_up", "1 while the engine answers.", ({ isUp }) =>
    isUp ? 1 : 0,
  );
  perEngine(
    "tierkv_gateway_in_flight",
    "Requests in flight at the engine.",
    ({ inFlight }) => inFlight,
  );
  perEngine(
    "tierkv_gateway_events_live",
    "1 while the gateway has all KV-cache events of the engine.",
    (engine) => (following.feedOf(engine)?.state === "live" ? 1 : 0),
  );
  perEngine(
    "tierkv_gateway_hashes_agreed",
    "1 if the gateway computes the engine's block hashes, -1 if its own hashes differ, 0 if still unknown.",
    (engine) => AGREED[following.agreementOf(engine)?.state ?? "learning"],
  );
  registerBlocks(registers, fleet, following);
  gauge(
    "tierkv_gateway_found_blocks",
    "Blocks found in vaults by look-ups of the last 30 s.",
    () => index.foundBlocks,
  );
  gauge("tierkv_gateway_waiting", "Requests waiting for an engine with room.", () => fleet.waiting);
}

function registerBlocks(registers: Registry[], fleet: Fleet, following: Following): void {
  void new Gauge({
    name: "tierkv_gateway_indexed_blocks",
    help: "Blocks that the engine reported: `tier` is `gpu` (its own memory) or `vault`.",
    labelNames: ["engine", "tier"],
    registers,
    collect(): void {
      this.reset();
      for (const engine of fleet.engines) {
        for (const tier of ["gpu", "vault"] as const) {
          this.set({ engine: engine.name, tier }, following.blocksOf(engine, tier));
        }
      }
    },
  });
}
