// Owns what every source of a pool's vaults is to who follows it: whole lists, now and after each change, and the last one while it is silent.
import type { VaultClass } from "../block.ts";

/** static: written down · dns: a name · pool: the vaults' own list · etcd: keys with leases. */
export type SourceKind = "static" | "dns" | "pool" | "etcd";

/** A vault that belongs, as its source says. */
export interface ListedVault {
  /** `host:port`. */
  readonly address: string;
  /** null: it is not said. */
  readonly class: VaultClass | null;
  /** PEM, where the source vouches for it; null: who connects knows whom to trust. */
  readonly certificate: string | null;
}

export interface VaultSource {
  readonly kind: SourceKind;
  /** Once. Hears nothing while nothing is known, and no empty list: who was a member stays one. */
  follow(onList: (list: readonly ListedVault[]) => void): void;
  /** Hears no more. Idempotent. */
  close(): void;
}

/** The first list of a source within `waitMs`; null: there was none. Closes it. */
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
