// Owns the hash ring: which engine owns a session, the same in every gateway, with little moved when an engine comes or goes.
import { createHash } from "node:crypto";
import { GATEWAY_RING_NODES } from "../../limits-gateway.ts";
import type { Engine } from "../engines/engine.ts";
import type { Order } from "../engines/fleet.ts";

/** 32 bits of MD5, as in the ring that this preset repeats. */
function placeOf(text: string): number {
  return createHash("md5").update(text).digest().readUInt32BE(12);
}

/** Positions of all engines, made once: an engine that is away keeps its own, and its sessions return to it. */
export class Ring {
  readonly #nodes: readonly { place: number; engine: Engine }[];

  constructor(engines: readonly Engine[]) {
    this.#nodes = engines
      .flatMap((engine) =>
        Array.from({ length: GATEWAY_RING_NODES }, (_none, at) => ({
          place: placeOf(`${engine.name}-vn-${at}`),
          engine,
        })),
      )
      .sort((a, b) => a.place - b.place);
  }

  /** The session's owner first, then who would own it without that one, and so on. */
  orderOf(session: string): Order {
    return (engines) => {
      const able = new Set(engines);
      const place = placeOf(session);
      const start = this.#nodes.findIndex((node) => node.place >= place);
      const from = Math.max(0, start);
      const ordered = new Set<Engine>();
      for (let at = 0; at < this.#nodes.length && ordered.size < able.size; at += 1) {
        const { engine } = this.#nodes[(from + at) % this.#nodes.length] ?? {};
        if (engine !== undefined && able.has(engine)) ordered.add(engine);
      }
      return [...ordered];
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
