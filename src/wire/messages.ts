// Owns the TypeScript shapes of every message in proto/tierkv.proto and proto/health.proto; that file says what each field means.
import type { RecordClassNumber } from "../block.ts";

// 64-bit fields are numbers (exact below 2^53), enums are their numbers, bytes are Buffers.

export interface HelloRequest {
  protocolMin: number;
  protocolMax: number;
  clientVersion: string;
  clientName: string;
}

export interface HelloReply {
  protocol: number;
  version: string;
  recordVersion: number;
  recordClass: number;
  epoch: number;
  maxRecordBytes: number;
  maxChunkBytes: number;
  maxKeys: number;
  laneAddress: string;
  laneToken: Buffer;
  readOnly: boolean;
}

export interface LookupRequest {
  namespace: Buffer;
  keys: Buffer;
  askDurable?: boolean;
}

export interface LookupReply {
  present: Buffer;
  durable: Buffer;
}

/** Exactly one of the two is set. */
export interface StoreRequest {
  offer?: StoreOffer;
  chunk?: Chunk;
}

export interface StoreOffer {
  namespace: Buffer;
  keys: Buffer;
  recordBytes: number[];
  recordClass: number;
  /** 0: nobody in particular. */
  tenant: number;
}

/** Exactly one of the two is set. */
export interface StoreReply {
  wanted?: StoreWanted;
  result?: StoreResult;
}

export interface StoreWanted {
  wanted: Buffer;
  statuses: number[];
}

export interface StoreResult {
  item: number;
  status: number;
}

export interface FetchPlan {
  namespace: Buffer;
  segments: FetchSegment[];
  chunkBytes: number;
}

export interface FetchSegment {
  recordClass: RecordClassNumber;
  group: number;
  keys: Buffer;
}

export interface FetchChunk {
  chunk?: Chunk;
}

export interface Chunk {
  pieces: Piece[];
}

export interface Piece {
  item: number;
  offset: number;
  recordBytes: number;
  data: Buffer;
  status: number;
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
  /** Connections open on which records travel beside gRPC. */
  lanes: number;
  outBytesPerS: number;
  inBytesPerS: number;
  /** Memory of records that are gone, kept for the next ones. */
  spareBytes: number;
}

export interface DiskStats {
  maxBytes: number;
  usedBytes: number;
  records: number;
  recordBytes: number;
  durableRecords: number;
  durableBytes: number;
  queuedRecords: number;
  queuedBytes: number;
  recovering: boolean;
  failing: boolean;
  durability: string;
}

export interface FlushRequest {
  namespace: Buffer;
  recordClass: number;
  model?: string;
}

export interface NameRequest {
  namespace: Buffer;
  model: string;
}

export type NameReply = Record<string, never>;

export interface DemoteRequest {
  namespace: Buffer;
  keys: Buffer;
  unusedOnly: boolean;
}

export interface DemoteReply {
  demoted: number;
}

export interface FlushReply {
  records: number;
  bytes: number;
  diskBytes: number;
  volatile: boolean;
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
