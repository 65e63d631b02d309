// Owns what every call of one vault shares: its store, its identity, its counters.
import type { VaultClass } from "../block.ts";
import type { Durability } from "../config/config.ts";
import type { Gossip } from "../discovery/gossip.ts";
import type { Logger } from "../log.ts";
import type { VaultCounters } from "../metrics.ts";
import type { StoreId } from "../native.ts";
import type { VaultListener } from "./access/listener.ts";
import type { AuditLog } from "./audit.ts";
import type { DiskWatch } from "./disk-watch.ts";
import type { FlushLog } from "./flush-log.ts";
import type { Gate } from "./gate.ts";
import type { Leases } from "./leases.ts";
import type { LookupSpans } from "./lookup-spans.ts";
import type { Members } from "./members.ts";
import type { ModelNames } from "./models.ts";
import type { PoolCalls } from "./pool-calls.ts";
import type { Rates } from "./rates.ts";
import type { Sessions } from "./sessions.ts";
import type { OpenStreams } from "./streams.ts";
import type { Watchers } from "./watchers.ts";
import type { Weight } from "./weight.ts";

export interface VaultContext {
  /** Id of the native RAM store. */
  readonly store: StoreId;
  readonly recordClass: VaultClass;
  /** Changes with every start: the memory of the run before is gone. */
  readonly epoch: number;
  readonly version: string;
  readonly recordVersion: number;
  readonly maxRecordBytes: number;
  /** Record bytes that calls under way may reserve, all together. */
  readonly maxReservedBytes: number;
  /** null: nothing is kept on disk. */
  readonly durability: Durability | null;
  readonly startedMs: number;
  /** null: nobody wants spans of what is asked. */
  readonly spans: LookupSpans | null;
  readonly counters: VaultCounters;
  readonly logger: Logger;
  readonly audit: AuditLog;
  readonly streams: OpenStreams;
  readonly models: ModelNames;
  readonly leases: Leases;
  readonly sessions: Sessions;
  /** null: nobody joins this vault. */
  readonly members: Members | null;
  /** null: nobody is asked who he is. */
  gate: Gate | null;
  readonly flushes: FlushLog;
  readonly weight: Weight;
  readonly watchers: Watchers;
  /** null: it belongs to no pool that keeps a list. */
  readonly pool: Gossip | null;
  readonly poolCalls: PoolCalls;
  /** null until it is open. */
  listener: VaultListener | null;
  /** null until it serves. */
  rates: Rates | null;
  /** null: nothing is kept on disk. */
  diskWatch: DiskWatch | null;
}
