// Owns the interface of a source of user activity, and the union of several.

/** Reports when this machine was last used. */
export interface Source {
  /** Name for the log. */
  readonly name: string;
  /** Milliseconds since the last use; Infinity: unknown. */
  idleMs(): number;
  close(): void;
}

export function together(sources: readonly Source[]): Source {
  return {
    name: sources.map(({ name }) => name).join(", "),
    idleMs: () => Math.min(...sources.map((source) => source.idleMs())),
    close(): void {
      for (const source of sources) source.close();
    },
  };
}
