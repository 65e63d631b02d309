// Owns the preset `ring`: which engine owns a session, and which part of a request names it.
import { Ring } from "../../pool/ring.ts";
import type { Engine } from "../engines/engine.ts";
import type { Order } from "../engines/fleet.ts";

/** Ring of all engines: one that is away keeps its positions, so its sessions return to it. */
export class SessionRing {
  readonly #ring: Ring<Engine>;

  constructor(engines: readonly Engine[]) {
    this.#ring = new Ring(engines.map((engine) => ({ name: engine.id, node: engine })));
  }

  /** Orders engines by ownership: the session's owner, then its successors. */
  orderOf(session: string): Order {
    return (engines) => {
      const able = new Set(engines);
      return [...this.#ring.ownersOf(session)].filter((engine) => able.has(engine));
    };
  }
}

/** Returns a request's session, from a header or a field of the API for it; null: none. */
export function sessionOf(
  headers: Readonly<Record<string, string | string[] | undefined>>,
  body: unknown,
): string | null {
  const { "x-session-id": named } = headers;
  if (typeof named === "string" && named !== "") return named;
  if (typeof body !== "object" || body === null) return null;
  const { prompt_cache_key: key, user } = body as Record<string, unknown>;
  const found = [key, user].find((value) => typeof value === "string" && value !== "");
  return typeof found === "string" ? found : null;
}
