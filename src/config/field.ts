// Owns the types of the table of configuration keys: key, section, and the proof that each value of Config has one.
import type { Config } from "./config.ts";
import type { Kind } from "./kinds.ts";

export type Environment = Readonly<Record<string, string | undefined>>;

/** One key: `T` is its type in Config; a nullable one is optional. */
export interface Field<T> {
  kind: Kind<NonNullable<T>>;
  doc: string;
  /** The value when the key is absent. */
  fallback(env: Environment): T;
  /** The default in words. */
  fallbackText: string;
  /** Value in the example file, as TOML. */
  example: string;
  /** Shown in the example as a setting; other keys are comments. */
  isShown?: true;
}

export interface Section<Fields> {
  doc: string;
  fields: Fields;
}

type Snake<S> = S extends `${infer First}${infer Rest}`
  ? `${First extends Lowercase<First> ? First : `_${Lowercase<First>}`}${Snake<Rest>}`
  : "";
type SectionNames = Exclude<keyof Config, "path">;

/** Exactly one field for each value of Config, under its name in snake case, as the compiler checks. */
export type Schema = {
  [S in SectionNames as Snake<S>]: Section<{
    [K in keyof Config[S] as Snake<K>]-?: Field<Config[S][K]>;
  }>;
};
