// Owns the TypeScript shapes of every message in proto/tierkv.proto and proto/health.proto, which document each field.
// 64-bit fields are numbers (exact below 2^53), enums are their numbers, bytes are Buffers.

export interface HelloRequest {
  protocolMin: number;
  protocolMax: number;
  clientVersion: string;
  clientName: string;
  /** The last flush this client knows of; 0: none. */
  flushed: number;
}

/** Flushes that a client has to follow. */
export interface FlushNews {
  /** Number of the last flush; 0: none yet. */
  number: number;
  /** The vault cannot name the missed flushes: the client drops everything. */
  everything: boolean;
  /** Ascending. */
  flushes: FlushedScope[];
}

export interface FlushedScope {
  number: number;
  everyNamespace: boolean;
  namespaces: Buffer[];
  recordClass: number;
  /** Not empty: also namespaces of this model that the vault had not heard of. */
  model: string;
  /** 0: all tenants. */
  tenant: number;
}

export interface WatchRequest {
  /** Id of this sidecar and class alone. */
  client: string;
  /** For people. */
  name: string;
  /** Number of the last flush that was followed here. */
  flushed: number;
  /** Dropped since the previous call: blocks of arenas, their bytes, saves under way. */
  blocks: number;
  bytes: number;
  saves: number;
  /** The sidecar ends and holds nothing any more. */
  leaving: boolean;
  /** The client's view of the vault; capacity 0: unknown. */
  draining: boolean;
  capacityBytes: number;
}

export interface WatchReply {
  epoch: number;
  flushes: FlushNews;
  draining: boolean;
  capacityBytes: number;
}

export interface ListRequest {
  recordClass: number;
  after: Buffer;
  /** Empty: everything is listed. */
  session: string;
  namespace: Buffer;
  tenant: number;
  /** Only records used again since they came, or kept. */
  hot?: boolean;
}

export interface ListReply {
  namespace: Buffer;
  /** 84 bytes each. */
  rows: Buffer;
  /** Empty: the last page. */
  last: Buffer;
  /** Empty: unknown. */
  model: string;
}

export interface DrainRequest {
  end: boolean;
}

export interface DrainReply {
  reservedBytes: number;
}

export interface WeighRequest {
  weight: number;
}

export interface WeighReply {
  /** Whether a restart keeps it. */
  kept: boolean;
}

export interface SignedEntry {
  statement: Buffer;
  signature: Buffer;
}

export interface PoolRequest {
  /** From the previous reply, with its vault's epoch; 0: none. */
  mark: number;
  epoch: number;
}

export interface PoolReply {
  /** Empty: the vault belongs to no pool. */
  key: Buffer;
  mark: number;
  epoch: number;
  vaults: SignedEntry[];
}

export interface GossipRequest {
  digest: Buffer;
  entries: SignedEntry[];
}

export interface GossipReply {
  entries: SignedEntry[];
}

export interface AdmitRequest {
  address: string;
  gone: boolean;
}

export interface AdmitReply {
  known: boolean;
}

export interface HelloReply {
  protocol: number;
  version: string;
  recordVersion: number;
  recordClass: number;
  epoch: number;
  maxRecordBytes: number;
  maxKeys: number;
  laneToken: Buffer;
  readOnly: boolean;
  flushes: FlushNews | null;
  capacityBytes: number;
  /** The vault takes no new records. */
  draining: boolean;
  addresses: string[];
  /** Requests on lanes may carry a trace context. */
  traced: boolean;
}

export interface LookupRequest {
  namespace: Buffer;
  keys: Buffer;
  askDurable?: boolean;
  /** Context of the asking span. */
  trace?: Buffer;
  /** Left out of the hit rate, because no request of an engine asks. */
  uncounted?: boolean;
}

export interface LookupReply {
  present: Buffer;
  durable: Buffer;
}

export interface ReportRequest {
  namespace: Buffer;
  keys: Buffer;
  reason: string;
}

export interface ReportReply {
  statuses: number[];
}

export type StatsRequest = Record<string, never>;

export interface StatsReply {
  version: string;
  recordClass: number;
  epoch: number;
  uptimeMs: number;
  maxBytes: number;
  usedBytes: number;
  reservedBytes: number;
  records: number;
  namespaces: number;
  counters: Record<string, number>;
  disk?: DiskStats | null;
  /** Open connections that carry records. */
  lanes: number;
  outBytesPerS: number;
  inBytesPerS: number;
  /** Memory of dropped records, kept for new ones. */
  spareBytes: number;
  draining: boolean;
  weight: number;
  /** Part of usedBytes that sessions keep. */
  keptBytes: number;
  sessions: number;
}

export interface DiskStats {
  /** Bytes that the vault may use on the disk. */
  maxBytes: number;
  /** Bytes of files. */
  usedBytes: number;
  /** Records on the disk. */
  records: number;
  /** Bytes of these records. */
  recordBytes: number;
  /** Records of these that would survive a power failure now. */
  durableRecords: number;
  /** Bytes of these records. */
  durableBytes: number;
  /** Records accepted and not written yet. */
  queuedRecords: number;
  /** Bytes of these records. */
  queuedBytes: number;
  /** True while segments of the previous run are read; their records are misses until then. */
  recovering: boolean;
  /** True while writes fail; the vault tries again, and memory serves on. */
  failing: boolean;
  /** As configured: `none`, `group` or `sync`. */
  durability: string;
  /** null, or left out: there is none. */
  archive?: ArchiveStats | null;
}

export interface ArchiveStats {
  /** Bytes that the vault may use in the archive. */
  maxBytes: number;
  /** Bytes in use there. */
  usedBytes: number;
  /** Segments that only the archive has. */
  remoteSegments: number;
  /** Bytes of sealed segments that are not there yet. */
  pendingBytes: number;
  /** True while requests to the archive fail; the vault tries again. */
  failing: boolean;
  /** Error of the last failed request. */
  trouble: string;
}

export interface FlushRequest {
  namespace: Buffer;
  recordClass: number;
  model?: string;
  tenant?: number;
  /** Names the flush in all vaults of a pool; empty: the vault chooses one. */
  id?: string;
}

export interface NameRequest {
  namespace: Buffer;
  model: string;
}

export type NameReply = Record<string, never>;

export interface MeasureRequest {
  namespace: Buffer;
  end: boolean;
}

export interface MeasureReply {
  records: number;
  bytes: number;
}

export interface KeepRequest {
  session: string;
  /** Empty: every session with that name. */
  namespace: Buffer;
  tenant: number;
  keys: Buffer;
  /** Groups whose other records leave the session. */
  superseded: number[];
  /** 0: unchanged. */
  keepS: number;
  release: boolean;
}

export interface KeepReply {
  sessions: number;
  refused: number;
}

export type SessionsRequest = Record<string, never>;

export interface SessionsReply {
  sessions: Session[];
}

export interface Session {
  name: string;
  namespace: Buffer;
  model: string;
  tenant: number;
  blocks: number;
  records: number;
  kept: number;
  keptBytes: number;
  /** Time until it is no longer kept; 0: not kept. */
  leftMs: number;
}

export interface FlushReply {
  /** Records dropped. */
  records: number;
  /** Memory freed. */
  bytes: number;
  /** Bytes freed on the disk. */
  diskBytes: number;
  /** The disk has not recorded the flush: records may come back after a restart of the vault. */
  volatile: boolean;
  /** Number of the flush at its vault; 0: none. */
  number: number;
  /** The sidecars that the vault knows, once per class of records. */
  sidecars: FlushedSidecar[];
  /** Of a flush by model: the vault knows no model of that name. */
  unknownModel: boolean;
  /** Names of the models that the vault knows, if `unknownModel`. */
  models: string[];
}

/** Amounts that a sidecar dropped for one class of records. */
export interface FlushedSidecar {
  /** Name that the sidecar gave to the vault. */
  name: string;
  /** False: the sidecar may still hold flushed records. */
  confirmed: boolean;
  /** Time since it was last heard; 0: connected. */
  quietMs: number;
  /** Blocks dropped from its arenas. */
  blocks: number;
  /** Bytes of these blocks. */
  bytes: number;
  /** Saves dropped before they were stored. */
  saves: number;
}

export interface InviteRequest {
  role: string;
  forS: number;
  uses: number;
}

export interface InviteReply {
  secret: string;
}

export interface RedeemRequest {
  machine: string;
  /** Its token from an earlier join; empty: none. */
  formers: string[];
}

export interface RedeemReply {
  name: string;
  token: string;
}

export type PeersRequest = Record<string, never>;

export interface PeersReply {
  peers: Peer[];
}

/** One machine that joined; times in ms since 1970, 0: never. */
export interface Peer {
  name: string;
  role: string;
  joinedMs: number;
  seenMs: number;
  address: string;
}

export interface RevokeRequest {
  name: string;
}

export interface RevokeReply {
  revoked: boolean;
}

export interface HealthCheckRequest {
  service: string;
}

export interface HealthCheckResponse {
  status: number;
}

/** HealthCheckResponse.ServingStatus of grpc.health.v1. */
export const ServingStatus = {
  UNKNOWN: 0,
  SERVING: 1,
  NOT_SERVING: 2,
  SERVICE_UNKNOWN: 3,
} as const;
