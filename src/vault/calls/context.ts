// Owns the state that all calls of one vault share: store, identity, counters.
import type { VaultClass } from "../../base/block.ts";
import type { Logger } from "../../base/log.ts";
import type { VaultCounters } from "../../base/metrics.ts";
import type { StoreId } from "../../base/native.ts";
import type { Durability } from "../../config/config.ts";
import type { Gossip } from "../../discovery/gossip.ts";
import type { AuditLog } from "../access/audit.ts";
import type { Gate } from "../access/gate.ts";
import type { VaultListener } from "../access/listener.ts";
import type { Members } from "../access/members.ts";
import type { FlushLog } from "../flushes/flush-log.ts";
import type { MissedFlushes } from "../flushes/missed-flushes.ts";
import type { Watchers } from "../flushes/watchers.ts";
import type { DiskWatch } from "../state/disk-watch.ts";
import type { LookupSpans } from "../state/lookup-spans.ts";
import type { Leases } from "../state/measuring-leases.ts";
import type { ModelNames } from "../state/models.ts";
import type { Rates } from "../state/rates.ts";
import type { Sessions } from "../state/sessions.ts";
import type { OpenStreams } from "../state/streams.ts";
import type { Weight } from "../state/weight.ts";
import type { PoolCalls } from "./pool-calls.ts";

export interface VaultContext {
  /** Id of the native RAM store. */
  readonly store: StoreId;
  readonly recordClass: VaultClass;
  /** Changes with every start, because the memory of the previous run is gone. */
  readonly epoch: number;
  readonly version: string;
  readonly recordVersion: number;
  readonly maxRecordBytes: number;
  /** Record bytes that all open calls together may reserve. */
  readonly maxReservedBytes: number;
  /** null: nothing is kept on disk. */
  readonly durability: Durability | null;
  readonly startedMs: number;
  /** null: spans are off. */
  readonly spans: LookupSpans | null;
  readonly counters: VaultCounters;
  readonly logger: Logger;
  readonly audit: AuditLog;
  readonly streams: OpenStreams;
  readonly models: ModelNames;
  readonly leases: Leases;
  readonly sessions: Sessions;
  /** null: machines cannot join this vault. */
  readonly members: Members | null;
  /** null: callers are not authenticated. */
  gate: Gate | null;
  readonly flushes: FlushLog;
  /** Flushes of the pool that this vault has not carried out. */
  readonly missed: MissedFlushes;
  readonly weight: Weight;
  readonly watchers: Watchers;
  /** null: the vault belongs to no pool with a signed list. */
  readonly pool: Gossip | null;
  readonly poolCalls: PoolCalls;
  /** null until it is open. */
  listener: VaultListener | null;
  /** null until the vault serves. */
  rates: Rates | null;
  /** null: nothing is kept on disk. */
  diskWatch: DiskWatch | null;
}
