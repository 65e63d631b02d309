// Owns the API by sequences: workers register, `/route` names a sequence's owner, and `/generate` streams from that worker.
import type { IncomingMessage, ServerResponse } from "node:http";
import { GATEWAY_SHOWN_CHARS_MAX } from "../../base/limits/gateway.ts";
import type { Engine } from "../engines/engine.ts";
import type { Fleet } from "../engines/fleet.ts";
import type { Fields } from "../tokens/prompt.ts";
import type { Visit } from "./allowance.ts";
import { fieldsOf, parseBody, readBody } from "./body.ts";
import type { BodyBudget } from "./body.ts";
import type { Forwarding } from "./forward.ts";
import { generate } from "./generate.ts";
import { decoded } from "./reading.ts";
import { refuseCounted, refuseLimited, tellLimits } from "./refusal.ts";
import type { Refused } from "./refusal.ts";

export const GENERATE = "/generate";
const SAMPLE = "http://10.0.0.2:8000";

/** Engines that register and deregister themselves. */
export interface Registry {
  /** null: there is no room for one more. */
  add(name: string, id: string): Engine | null;
  remove(engine: Engine): void;
  /** Returns why this engine can never be added; null: it can. */
  objectionTo(name: string): string | null;
}

export interface SequenceOptions extends Forwarding {
  /** null: this API is not served. */
  registry: Registry | null;
  budget: BodyBudget;
  /** Tenant whose blocks may be shared; null: all without a tenant share. */
  tenant: string | null;
  /** null: its key has no limits. */
  visit: Visit | null;
}

/** Returns false where the path is not part of this API. */
export async function answerSequence(
  request: IncomingMessage,
  response: ServerResponse,
  path: string,
  options: SequenceOptions,
): Promise<boolean> {
  const { registry } = options;
  if (registry === null) return false;
  if (request.method === "GET") return answerQuestion(response, path, options);
  const isChange = path === "/register" || path === "/deregister";
  if (!isChange && path !== GENERATE) return false;
  const objection = isChange ? objectionTo(request, options.tenant) : null;
  if (objection !== null) {
    refuseCounted(response, objection, options);
    return true;
  }
  const body = await readBody(request, options.budget);
  if (body === "gone") {
    options.figures.gone();
    return true;
  }
  if (typeof body === "string") {
    refuseCounted(response, body, options);
    return true;
  }
  try {
    const asked = fieldsOf(parseBody(body, undefined));
    if (path === GENERATE) await generateWithin(response, asked, body.length, options);
    else change(response, path, asked, options.fleet, registry);
  } finally {
    options.budget.give(body.length);
  }
  return true;
}

/** Returns why this client may not register engines; null: it may. */
function objectionTo({ headers }: IncomingMessage, tenant: string | null): Refused | null {
  // An engine gets the prompts of all tenants.
  if (tenant !== null) return "tenant_key";
  // Browsers name the page that sends. Any page could otherwise register an engine at a gateway without keys.
  return headers.origin === undefined ? null : "web_page";
}

async function generateWithin(
  response: ServerResponse,
  asked: Fields,
  bytes: number,
  options: SequenceOptions,
): Promise<void> {
  const spent = options.visit?.spend(asked, bytes) ?? null;
  tellLimits(response, options.visit);
  if (spent === null) await generate(response, asked, options);
  else refuseLimited(response, spent, options);
}

function answerQuestion(
  response: ServerResponse,
  path: string,
  { router, fleet }: SequenceOptions,
): boolean {
  const told = (engine: Engine): object => ({ address: engine.access.urlOf(engine.name) });
  if (path === "/workers") {
    const workers: Record<string, object> = {};
    for (const engine of fleet.engines) workers[engine.id] = told(engine);
    say(response, 200, workers);
    return true;
  }
  if (!path.startsWith("/route/")) return false;
  const asked = path.slice("/route/".length);
  const [owner] = router.orderOf(decoded(asked, asked))(fleet.able(null));
  if (owner === undefined) say(response, 200, { error: "No workers available" });
  else say(response, 200, { worker_id: owner.id, ...told(owner) });
  return true;
}

function change(
  response: ServerResponse,
  path: string,
  { worker_id: id, address }: Fields,
  fleet: Fleet,
  registry: Registry,
): void {
  if (typeof id !== "string" || id === "") return lacks(response, "worker_id");
  const known = fleet.engines.find((engine) => engine.id === id);
  if (path === "/deregister") {
    if (known === undefined) return say(response, 200, { error: "worker not found" });
    registry.remove(known);
    return say(response, 200, { message: `Worker ${id} deregistered.` });
  }
  const name = nameOf(address);
  if (address === undefined) return lacks(response, `address, such as ${SAMPLE}`);
  if (name === null) {
    const shown = JSON.stringify(address).slice(0, GATEWAY_SHOWN_CHARS_MAX);
    return say(response, 422, { detail: `address ${shown} is none: write ${SAMPLE}` });
  }
  const objection = registry.objectionTo(name);
  if (objection !== null) return say(response, 422, { detail: objection });
  // The worker came back at another address.
  if (known !== undefined && known.name !== name) registry.remove(known);
  if (registry.add(name, id) === null) return say(response, 429, { error: "too many workers" });
  return say(response, 200, { message: `Worker ${id} registered.` });
}

/** Returns `host:port` of an address, with or without `http://`; null: it is no such address. */
function nameOf(address: unknown): string | null {
  if (typeof address !== "string" || address === "") return null;
  const text = address.includes("://") ? address : `http://${address}`;
  if (!URL.canParse(text)) return null;
  const { protocol, hostname, port } = new URL(text);
  return protocol === "http:" ? `${hostname}:${port === "" ? "80" : port}` : null;
}

function lacks(response: ServerResponse, field: string): void {
  say(response, 422, { detail: `the body lacks ${field}` });
}

function say(response: ServerResponse, code: number, what: object): void {
  response.writeHead(code, { "content-type": "application/json" });
  response.end(JSON.stringify(what));
}
