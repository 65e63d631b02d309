// Owns what a caller gives a vault's client: records to store, and how long a fetch may take.

/** One record of the native outbox to store. */
export interface StoreItem {
  /** Packed, 36 bytes. */
  key: Buffer;
  /** `make`: of a deferred record that no lane could make as it was announced. */
  record: { readonly id: number; readonly isDeferred: boolean; make(): Promise<void> };
}

export interface FetchOptions {
  deadlineMs: number;
  signal?: AbortSignal | undefined;
  /** So many bytes have arrived since the last time. */
  onProgress?: (bytes: number) => void;
}
