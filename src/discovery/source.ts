// Owns the interface of a source of vaults: whole lists, now and after each change; the last one stays while the source is silent.
import type { VaultClass } from "../base/block.ts";

/** static: configured · dns: a name · pool: the vaults' own list · etcd: keys with leases. */
export type SourceKind = "static" | "dns" | "pool" | "etcd";

/** A member vault, as its source reports it. */
export interface ListedVault {
  /** `host:port`. */
  readonly address: string;
  /** null: not reported. */
  readonly class: VaultClass | null;
  /** PEM, where the source vouches for it; null: the client knows whom to trust. */
  readonly certificate: string | null;
}

export interface VaultSource {
  readonly kind: SourceKind;
  /** Call once. Reports nothing while nothing is known, and no empty list, so that members stay. */
  follow(onList: (list: readonly ListedVault[]) => void): void;
  /** Ends the reports; idempotent. */
  close(): void;
  /** Why the latest attempt failed; empty or absent: none has, or a later one succeeded. */
  readonly failure?: string;
}

/** Returns the first list of a source within `waitMs`; null: there was none. Closes the source. */
export async function firstList(
  source: VaultSource,
  waitMs: number,
): Promise<readonly ListedVault[] | null> {
  try {
    return await new Promise((resolve) => {
      const timer = setTimeout(() => resolve(null), waitMs);
      source.follow((list) => {
        clearTimeout(timer);
        resolve(list);
      });
    });
  } finally {
    source.close();
  }
}
