// Owns the preset `ring`: which engine owns a session, and what names the session of a request.
import { Ring } from "../../pool/ring.ts";
import type { Engine } from "../engines/engine.ts";
import type { Order } from "../engines/fleet.ts";

/** Positions of all engines: one that is away keeps its own, and its sessions return to it. */
export class SessionRing {
  readonly #ring: Ring<Engine>;

  constructor(engines: readonly Engine[]) {
    this.#ring = new Ring(engines.map((engine) => ({ name: engine.id, node: engine })));
  }

  /** The session's owner first, then who would own it without that one, and so on. */
  orderOf(session: string): Order {
    return (engines) => {
      const able = new Set(engines);
      return [...this.#ring.ownersOf(session)].filter((engine) => able.has(engine));
    };
  }
}

/** What names the session of a request: a header, or a field of the API for it; null: nothing. */
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
