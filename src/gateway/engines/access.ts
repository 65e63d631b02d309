// Owns how engines are reached: on TCP or a Unix socket, in the clear or over TLS, and with the key that `vllm serve --api-key` asks for.
import { unixPath } from "../../base/hosts.ts";

export interface EngineAccess {
  /** Whether engines are reached over TLS. */
  readonly isSecure: boolean;
  /** Returns the address of an engine's server. */
  urlOf(name: string): string;
  /** Headers of the gateway's own requests, and of clients' requests where the gateway has keys of its own. */
  readonly headers: Readonly<Record<string, string>>;
  /** The same, names and values in turn. */
  readonly fields: readonly string[];
  /** Returns the options of connections to an engine. */
  connectTo(name: string): { readonly ca?: string; readonly socketPath?: string };
}

/** No TLS, no key. */
export const OPEN: EngineAccess = accessWith(null, null);

/** `key`: the engines' API key; `ca`: PEM of the authority of their certificates; null: none. */
export function accessWith(key: string | null, ca: string | null): EngineAccess {
  const headers: EngineAccess["headers"] = key === null ? {} : { authorization: `Bearer ${key}` };
  return {
    isSecure: ca !== null,
    // A socket has no host, but HTTP and a certificate name one.
    urlOf: (name) =>
      `${ca === null ? "http" : "https"}://${unixPath(name) === null ? name : "localhost"}`,
    headers,
    fields: Object.entries(headers).flat(),
    connectTo(name) {
      const socketPath = unixPath(name);
      return { ...(ca === null ? {} : { ca }), ...(socketPath === null ? {} : { socketPath }) };
    },
  };
}
