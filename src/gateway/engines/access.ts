// Owns how engines are reached: in the clear or over TLS, and with the key that `vllm serve --api-key` asks for.

export interface EngineAccess {
  /** Returns the address of an engine's server. */
  urlOf(name: string): string;
  /** Headers of the gateway's own requests, and of clients' requests where the gateway has keys of its own. */
  readonly headers: Readonly<Record<string, string>>;
  /** Options of connections. */
  readonly connect: { readonly ca?: string };
}

/** No TLS, no key. */
export const OPEN: EngineAccess = {
  urlOf: (name) => `http://${name}`,
  headers: {},
  connect: {},
};

/** `key`: the engines' API key; `ca`: PEM of the authority of their certificates; null: none. */
export function accessWith(key: string | null, ca: string | null): EngineAccess {
  return {
    urlOf: (name) => `${ca === null ? "http" : "https"}://${name}`,
    headers: key === null ? {} : { authorization: `Bearer ${key}` },
    connect: ca === null ? {} : { ca },
  };
}
