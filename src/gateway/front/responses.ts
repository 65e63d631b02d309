// Owns which engine holds a stored answer of the Responses API, and whose it is: later requests for it go there.
import { GATEWAY_RESPONSES_KEPT_MAX } from "../../limits/gateway.ts";
import type { Engine } from "../engines/engine.ts";
import { fieldsOf } from "./body.ts";

const CREATE = /^\/v1\/responses$/;
/** `render` is a route of its own, which names no stored answer. */
const OF_ONE = /^\/v1\/responses\/(?!render$)([^/]+)/;
/** The first `id` of an answer or of its first event. */
const ID = /"id": ?"(resp_[\w-]+)"/;
/** Characters in which the id of an answer is looked for. */
const HEAD_CHARS = 4096;

interface Stored {
  engine: Engine;
  tenant: string | null;
}

/** Where a request must go: `any`: to any engine; `nowhere`: its answer is another tenant's, or on an engine that is gone. */
export type Place = "any" | "nowhere" | Engine;

export class StoredResponses {
  readonly #stored = new Map<string, Stored>();

  /** Returns a function for the first bytes of an answer to this request, which remembers its id; undefined: none is stored. */
  onBegun(
    path: string,
    tenant: string | null,
  ): ((engine: Engine, chunk: Buffer) => void) | undefined {
    if (!CREATE.test(path)) return undefined;
    return (engine, chunk) => {
      const [, id] = ID.exec(chunk.toString("latin1", 0, HEAD_CHARS)) ?? [];
      if (id === undefined) return;
      this.#stored.set(id, { engine, tenant });
      const [oldest] = this.#stored.keys();
      if (this.#stored.size > GATEWAY_RESPONSES_KEPT_MAX && oldest !== undefined)
        this.#stored.delete(oldest);
    };
  }

  /** Returns the engine that holds the answer a request names, in its path or as `previous_response_id`. */
  placeOf(path: string, body: unknown, tenant: string | null, engines: readonly Engine[]): Place {
    const [, named] = OF_ONE.exec(path) ?? [];
    const { previous_response_id: previous } = CREATE.test(path) ? fieldsOf(body) : {};
    const id = named ?? previous;
    if (typeof id !== "string") return "any";
    const stored = this.#stored.get(id);
    // An earlier gateway may have seen it created. Engines know no tenants, so a tenant's request must be sure.
    if (stored === undefined) return tenant === null ? "any" : "nowhere";
    return stored.tenant === tenant && engines.includes(stored.engine) ? stored.engine : "nowhere";
  }
}
