// Owns an engine's health checks: at an interval, and at once after a request to it failed.
import { Agent, request } from "undici";
import { toTierkvError } from "../../errors.ts";
import {
  GATEWAY_CONNECT_MS,
  GATEWAY_HEALTH_FAILURES,
  GATEWAY_HEALTH_MS,
  GATEWAY_HEALTH_TIMEOUT_MS,
  GATEWAY_KEEPALIVE_MS,
  GATEWAY_MODELS_BYTES_MAX,
  GATEWAY_MODELS_EVERY,
  GATEWAY_MODELS_MAX,
} from "../../limits/gateway.ts";
import type { Logger } from "../../log.ts";
import { textWithin } from "./answer.ts";
import type { Engine, Model } from "./engine.ts";

/** Error codes that prove at once that no engine listens. */
const NOBODY: ReadonlySet<unknown> = new Set([
  "ECONNREFUSED",
  "EHOSTUNREACH",
  "ENOTFOUND",
  "UND_ERR_CONNECT_TIMEOUT",
]);

export interface HealthOptions {
  engine: Engine;
  logger: Logger;
  /** Called when the engine goes down, and after each reading of its models. */
  onChange(): void;
}

/** Watches one engine from `start` until `close`. */
export class Health {
  readonly #options: HealthOptions;
  /** Its own connection, because a full engine is still checked. */
  readonly #agent: Agent;
  #timer: NodeJS.Timeout | undefined;
  #failures = 0;
  #turn = 0;
  #isAsking = false;
  #isClosed = false;
  #isDownSaid = false;

  /** Paths that report a pause, as far as the engine serves them; vLLM has some in its development mode alone. */
  #pauses: readonly Pause[] = PAUSES;

  constructor(options: HealthOptions) {
    this.#options = options;
    this.#agent = new Agent({
      connections: 1,
      connect: { timeout: GATEWAY_CONNECT_MS, ...options.engine.access.connect },
      headersTimeout: GATEWAY_HEALTH_TIMEOUT_MS,
      bodyTimeout: GATEWAY_HEALTH_TIMEOUT_MS,
      keepAliveTimeout: GATEWAY_KEEPALIVE_MS,
    });
  }

  /** Checks now, and then at an interval. */
  async start(): Promise<void> {
    await this.#ask();
  }

  /** Checks now, because a request failed before its answer began; the engine is down at once where no process listens. */
  suspect(error: unknown): void {
    if (NOBODY.has(codeOf(error))) this.#setDown(reasonOf(error));
    clearTimeout(this.#timer);
    void this.#ask();
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    await this.#agent.destroy();
  }

  async #ask(): Promise<void> {
    if (this.#isAsking || this.#isClosed) return;
    this.#isAsking = true;
    try {
      await this.#look();
      this.#failures = 0;
    } catch (error) {
      this.#failures += 1;
      const isOver = NOBODY.has(codeOf(error)) || this.#failures >= GATEWAY_HEALTH_FAILURES;
      if (isOver || error instanceof Unfit) this.#setDown(reasonOf(error));
    } finally {
      this.#isAsking = false;
    }
    if (!this.#isClosed) this.#timer = setTimeout(() => void this.#ask(), GATEWAY_HEALTH_MS);
  }

  async #look(): Promise<void> {
    const { engine, logger, onChange } = this.#options;
    await this.#get("/health");
    if (!engine.isUp) this.#pauses = PAUSES;
    await this.#checkPauses();
    this.#turn += 1;
    if (engine.isUp && this.#turn % GATEWAY_MODELS_EVERY !== 0) return;
    const models = modelsOf(await this.#get("/v1/models"));
    if (this.#isClosed) return;
    const wasUp = engine.isUp;
    engine.setUp(models);
    if (!wasUp) {
      logger.info({ engine: engine.name, models: models.map(({ id }) => id) }, "engine answers");
    }
    onChange();
  }

  /** Throws Unfit where the engine is paused or asleep: it would accept requests and hold them. */
  async #checkPauses(): Promise<void> {
    for (const pause of this.#pauses) {
      const [path, field, says] = pause;
      const { code, text } = await this.#query(path);
      if (code !== 200) this.#pauses = this.#pauses.filter((one) => one !== pause);
      else if (isTrue(text, field)) throw new Unfit(says);
    }
  }

  async #get(path: string): Promise<string> {
    const { code, text } = await this.#query(path);
    if (code === 401) throw new Unfit(`${path} answers 401: set [gateway] engine_key`);
    if (code !== 200) throw new Unfit(`${path} answers ${code}`);
    return text;
  }

  async #query(path: string): Promise<{ code: number; text: string }> {
    const { name, access } = this.#options.engine;
    const { statusCode: code, body } = await request(`${access.urlOf(name)}${path}`, {
      dispatcher: this.#agent,
      headers: access.headers,
    });
    const text = await textWithin(body, GATEWAY_MODELS_BYTES_MAX);
    if (text === null) throw new Unfit(`${path} answers without an end`);
    return { code, text };
  }

  #setDown(reason: string): void {
    const { engine, logger, onChange } = this.#options;
    if (this.#isClosed) return;
    const wasUp = engine.isUp;
    engine.setDown(reason);
    // An engine that never answered is logged too, because its address may be wrong.
    if (wasUp || !this.#isDownSaid) {
      this.#isDownSaid = true;
      logger.warn({ engine: engine.name, reason }, "engine does not answer: requests go elsewhere");
    }
    if (wasUp) onChange();
  }
}

/** A path, the field of its answer that is true during a pause, and the engine's state then. */
type Pause = readonly [path: string, field: string, says: string];

const PAUSES: readonly Pause[] = [
  ["/is_paused", "is_paused", "it is paused"],
  ["/is_sleeping", "is_sleeping", "it sleeps"],
];

function isTrue(text: string, field: string): boolean {
  try {
    return (JSON.parse(text) as Record<string, unknown> | null)?.[field] === true;
  } catch {
    return false;
  }
}

/** The engine answers, but not as one that can serve. */
class Unfit extends Error {}

function modelsOf(text: string): Model[] {
  let list: unknown;
  try {
    list = (JSON.parse(text) as { data?: unknown }).data;
  } catch {
    throw new Unfit("/v1/models answers no JSON");
  }
  if (!Array.isArray(list)) throw new Unfit("/v1/models answers no list");
  const isModel = (item: unknown): item is Model =>
    typeof item === "object" && item !== null && "id" in item && typeof item.id === "string";
  return list.filter(isModel).slice(0, GATEWAY_MODELS_MAX);
}

function codeOf(error: unknown): unknown {
  return error instanceof Error && "code" in error ? error.code : null;
}

function reasonOf(error: unknown): string {
  const { message } = toTierkvError(error);
  return message === "" ? String(codeOf(error)) : message;
}
