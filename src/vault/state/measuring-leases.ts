// Owns the leases of measuring commands: their records go when the command ends, or when the lease expires.
import { isMeasuring, toNamespace } from "../../base/block.ts";
import type { Namespace } from "../../base/block.ts";
import { TierkvError } from "../../base/errors.ts";
import { MEASURE_LEASE_MS, MEASURES_MAX } from "../../base/limits/tools.ts";
import type { Logger } from "../../base/log.ts";
import type { StoreId } from "../../base/native.ts";
import { storeFlush } from "../../base/native.ts";
import type { ModelNames } from "./models.ts";

/** Model name that marks such namespaces in the file of names, so that a restart finds them. */
const MODEL = "tierkv measuring";
const EVERY_CLASS = 0;
const EVERYBODY = 0;
/** Number of no flush: sidecars hold no copies of these records, so none need be told. */
const NO_FLUSH = 0;

export interface Dropped {
  records: number;
  bytes: number;
}

export class Leases {
  readonly #store: StoreId;
  readonly #models: ModelNames;
  readonly #logger: Logger;
  readonly #leaseMs: number;
  /** By namespace, in hexadecimal. */
  readonly #timers = new Map<string, NodeJS.Timeout>();

  /** Renews the leases of namespaces that an earlier run left on disk. */
  constructor(
    store: StoreId,
    models: ModelNames,
    logger: Logger,
    leaseMs: number = MEASURE_LEASE_MS,
  ) {
    this.#store = store;
    this.#models = models;
    this.#logger = logger;
    this.#leaseMs = leaseMs;
    for (const key of models.namespacesOf(MODEL)) this.#arm(toNamespace(Buffer.from(key, "hex")));
  }

  /** Begins or renews a lease. Throws BAD_ARGUMENT for a namespace not of a measuring command, OVERLOAD beyond MEASURES_MAX. */
  begin(namespace: Namespace): void {
    checkMeasuring(namespace);
    const isNew = !this.#timers.has(namespace.toString("hex"));
    if (isNew && this.#timers.size >= MEASURES_MAX) {
      const limit = { count: this.#timers.size, limit: MEASURES_MAX };
      throw new TierkvError("OVERLOAD", { what: "measuring commands", ...limit });
    }
    this.#models.learn(namespace, MODEL);
    this.#arm(namespace);
  }

  /** Ends a lease and drops its records in memory and on disk. */
  async end(namespace: Namespace): Promise<Dropped> {
    checkMeasuring(namespace);
    const key = namespace.toString("hex");
    clearTimeout(this.#timers.get(key));
    this.#timers.delete(key);
    const { records, bytes } = await storeFlush(
      this.#store,
      NO_FLUSH,
      namespace,
      EVERY_CLASS,
      EVERYBODY,
    );
    this.#models.forget(namespace);
    return { records, bytes };
  }

  close(): void {
    for (const timer of this.#timers.values()) clearTimeout(timer);
    this.#timers.clear();
  }

  #arm(namespace: Namespace): void {
    const key = namespace.toString("hex");
    clearTimeout(this.#timers.get(key));
    const timer = setTimeout(() => void this.#expire(namespace), this.#leaseMs);
    this.#timers.set(key, timer.unref());
  }

  async #expire(namespace: Namespace): Promise<void> {
    try {
      const dropped = await this.end(namespace);
      this.#logger.info(dropped, "records of a measuring command that did not end were dropped");
    } catch (error) {
      this.#logger.warn({ err: error }, "records of a measuring command could not be dropped");
    }
  }
}

function checkMeasuring(namespace: Namespace): void {
  if (isMeasuring(namespace)) return;
  const reason = "Measure: the namespace does not begin as those of measuring commands do";
  throw new TierkvError("BAD_ARGUMENT", { reason });
}
