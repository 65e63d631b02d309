// Owns the arguments of a vault client's calls: records to store, and the time for a fetch.

/** One record of the native outbox to store. */
export interface StoreItem {
  /** Packed key, 36 bytes. */
  key: Buffer;
  /** `make` encodes a deferred record that no lane could encode at its announced length. */
  record: { readonly id: number; readonly isDeferred: boolean; make(): Promise<void> };
}

export interface FetchOptions {
  deadlineMs: number;
  signal?: AbortSignal | undefined;
  /** Called with the bytes that arrived since the last call. */
  onProgress?: (bytes: number) => void;
}
