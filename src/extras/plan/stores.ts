// Owns the sizes of a Valkey cluster and of a bucket for a number of tokens.
import {
  BUCKET_INDEX_ENTRY_BYTES,
  BUCKET_INDEX_HEAD_BYTES,
  BUCKET_OBJECT_BYTES,
  BUCKET_RANGE_BYTES,
  BUCKET_RUN_RECORDS,
  RECORD_HEADER_BYTES,
  VALKEY_KEY_BYTES,
  VALKEY_PRIMARIES_MIN,
} from "../../base/limits/cold.ts";

/** Blocks of one group of layers. */
export interface Block {
  /** Tokens of a block. */
  tokens: number;
  /** Bytes of its record, without the header. */
  bytes: number;
}

export interface Nodes {
  /** Memory of a node for records, in bytes: its `maxmemory`. */
  bytes: number;
  /** Replicas of each primary. */
  replicas: number;
}

interface StoreRow {
  /** Bytes of records. */
  bytes: number;
  tokens: number;
  /** Memory that they take in Valkey, once. */
  valkeyBytes: number;
  primaries: number;
  /** Primaries and replicas. */
  nodes: number;
  bucketBytes: number;
  bucketObjects: number;
}

export interface StoreForecast extends Nodes {
  /** Memory in Valkey of each byte of records. */
  factor: number;
  rows: StoreRow[];
}

/**
 * Returns what jemalloc, the allocator of Valkey and Redis, takes for so many bytes: of each doubling there are four sizes. Source:
 * jemalloc's manual, "size classes".
 */
export function allocated(bytes: number): number {
  const step = 2 ** (Math.ceil(Math.log2(bytes)) - 3);
  return Math.ceil(bytes / step) * step;
}

/** Memory of a record in Valkey, with its key. `bytes`: of the record, without the header. */
export const valkeyRecordBytes = (bytes: number): number =>
  allocated(bytes + RECORD_HEADER_BYTES) + VALKEY_KEY_BYTES;

const sumOf = (blocks: readonly Block[], of: (block: Block) => number): number =>
  blocks.reduce((sum, block) => sum + of(block), 0);

/** Records of an average object: those of a run, as far as one object takes them. */
const objectRecords = ({ bytes }: Block): number =>
  Math.max(
    1,
    Math.min(BUCKET_RUN_RECORDS, Math.floor(BUCKET_OBJECT_BYTES / (bytes + RECORD_HEADER_BYTES))),
  );

const bucketBytes = (block: Block): number =>
  block.bytes +
  RECORD_HEADER_BYTES +
  BUCKET_INDEX_ENTRY_BYTES +
  BUCKET_INDEX_HEAD_BYTES / objectRecords(block);

/** Requests to a bucket that restore a prompt: of each object its index, and ranges of its records. */
export function bucketRequests(blocks: readonly Block[], tokens: number): number {
  const requests = sumOf(blocks, (block) => {
    const records = objectRecords(block);
    const inRange = Math.floor(BUCKET_RANGE_BYTES / (block.bytes + RECORD_HEADER_BYTES));
    const ofObject = 1 + Math.ceil(records / Math.max(1, inRange));
    return (tokens / block.tokens / records) * ofObject;
  });
  return Math.ceil(requests);
}

/** A cluster takes over from a lost primary if it has three; a server alone has no replica that does. */
function primariesFor(bytes: number, nodes: Nodes): number {
  const needed = Math.max(1, Math.ceil(bytes / nodes.bytes));
  return needed === 1 && nodes.replicas === 0 ? 1 : Math.max(VALKEY_PRIMARIES_MIN, needed);
}

/** Forecasts what each number of bytes of records (as `VaultRow`) takes in a cluster of such nodes, and in a bucket. */
export function forecastStores(
  blocks: readonly Block[],
  sizes: readonly { bytes: number; tokens: number }[],
  nodes: Nodes,
): StoreForecast {
  const perToken = (of: (block: Block) => number): number =>
    sumOf(blocks, (block) => of(block) / block.tokens);
  const valkey = perToken(({ bytes }) => valkeyRecordBytes(bytes));
  const bucket = perToken(bucketBytes);
  const objects = perToken((block) => 1 / objectRecords(block));
  const rows = sizes.map(({ bytes, tokens }) => {
    const valkeyBytes = tokens * valkey;
    const primaries = primariesFor(valkeyBytes, nodes);
    return {
      bytes,
      tokens,
      valkeyBytes,
      primaries,
      nodes: primaries * (1 + nodes.replicas),
      bucketBytes: tokens * bucket,
      bucketObjects: Math.ceil(tokens * objects),
    };
  });
  return { ...nodes, factor: valkey / perToken(({ bytes }) => bytes), rows };
}
