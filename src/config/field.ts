// Owns what one configuration key is made of.
import type { Kind } from "./kinds.ts";

export type Environment = Readonly<Record<string, string | undefined>>;

/** One key: `T` is its type in Config; a nullable one may be left out. */
export interface Field<T> {
  kind: Kind<NonNullable<T>>;
  doc: string;
  /** The value when the key is absent. */
  fallback(env: Environment): T;
  /** The default in words. */
  fallbackText: string;
  /** What the example file shows, as TOML. */
  example: string;
  /** Shown in the example as a setting; the others stand there as comments. */
  isShown?: true;
}
