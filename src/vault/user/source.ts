// Owns what a source of the user's activity is, and how several are one.

/** Something that tells when somebody last used this machine. */
export interface Source {
  /** As the log names it. */
  readonly name: string;
  /** Milliseconds since then; Infinity: not that it knows. */
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
