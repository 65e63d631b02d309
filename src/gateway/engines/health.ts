// Owns an engine's health checks: at an interval, and at once after a request to it failed.
import { toTierkvError } from "../../base/errors.ts";
import {
  GATEWAY_HEALTH_FAILURES,
  GATEWAY_HEALTH_MS,
  GATEWAY_HEALTH_TIMEOUT_MS,
  GATEWAY_MODELS_BYTES_MAX,
  GATEWAY_MODELS_EVERY,
  GATEWAY_MODELS_MAX,
  GATEWAY_PAUSE_TIMEOUT_MS,
} from "../../base/limits/gateway.ts";
import type { Logger } from "../../base/log.ts";
import type { Calls } from "./calls.ts";
import { Ending } from "./ending.ts";
import type { DownKind, Engine, Model } from "./engine.ts";
import { openCalls } from "./open-calls.ts";
import { countersIn, Progress } from "./progress.ts";

/** Error codes of connections that were never made, so that no engine has seen the request. */
const NOBODY: ReadonlySet<unknown> = new Set([
  "ECONNREFUSED",
  "ECONNTIMEDOUT",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ENOENT",
  "ENOTFOUND",
  "UND_ERR_CONNECT_TIMEOUT",
]);

/** Whether an error proves that no engine listens. */
export const isUnreached = (error: unknown): boolean => NOBODY.has(codeOf(error));

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
  readonly #calls: Calls;
  #timer: NodeJS.Timeout | undefined;
  #failures = 0;
  #turn = 0;
  #isAsking = false;
  #isClosed = false;
  #isDownSaid = false;
  #answering: Promise<boolean> | null = null;
  readonly #progress: Progress;
  /** Why the engine counts as hung, until it has computed a token again; null: it does not. */
  #hung: string | null = null;

  /** Paths that report a pause, as far as the engine serves them; vLLM has some in its development mode alone. */
  #pauses: readonly Pause[] = PAUSES;

  constructor(options: HealthOptions) {
    this.#options = options;
    this.#progress = new Progress(options.engine);
    const { name, access } = options.engine;
    this.#calls = openCalls(name, 1, access);
  }

  /** Checks now, and then at an interval. */
  async start(): Promise<void> {
    await this.#ask();
  }

  /** Checks now, because a request failed before its answer began; the engine is down at once where no process listens. */
  suspect(error: unknown): void {
    if (isUnreached(error)) this.#fail(error);
    clearTimeout(this.#timer);
    void this.#ask();
  }

  /** Whether the engine answers now; requests whose connections broke together share one check. */
  answers(): Promise<boolean> {
    this.#answering ??= this.#answersTwice().finally(() => (this.#answering = null));
    return this.#answering;
  }

  async #answersTwice(): Promise<boolean> {
    // The first check may meet an idle connection that was closed with the others.
    for (let tries = 0; tries < 2; tries += 1) {
      try {
        await this.#get("/health");
        return true;
      } catch (error) {
        if (this.#isClosed) return false;
        if (isUnreached(error) || error instanceof Unfit) {
          this.#fail(error);
          return false;
        }
      }
    }
    this.suspect(null);
    return false;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    await this.#calls.destroy();
  }

  async #ask(): Promise<void> {
    if (this.#isAsking || this.#isClosed) return;
    this.#isAsking = true;
    try {
      await this.#look();
      this.#failures = 0;
    } catch (error) {
      this.#failures += 1;
      const isOver = isUnreached(error) || this.#failures >= GATEWAY_HEALTH_FAILURES;
      if (isOver || error instanceof Unfit) this.#fail(error);
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
    await this.#checkProgress();
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

  /**
   * Throws Unfit where the engine is paused or asleep: it would accept requests and hold them. The core answers between two steps,
   * so a busy engine may be silent. Silence changes nothing: an engine that gets requests keeps them, and one that gets none, such
   * as one that is waking up, waits for an answer.
   */
  async #checkPauses(): Promise<void> {
    const { isUp } = this.#options.engine;
    const timeoutMs = isUp ? GATEWAY_PAUSE_TIMEOUT_MS : GATEWAY_HEALTH_TIMEOUT_MS;
    for (const pause of this.#pauses) {
      const [path, field, says] = pause;
      const answer = await this.#query(path, null, timeoutMs).catch((error: unknown) => {
        if (isUp && error instanceof Silent) return null;
        throw error;
      });
      if (answer === null) return;
      const { code, text } = answer;
      if (code !== 200) this.#pauses = this.#pauses.filter((one) => one !== pause);
      else if (isTrue(text, field)) throw new Unfit(says);
    }
  }

  /** Throws Unfit where requests wait and nothing moves, and from then on until the engine computes a token. */
  async #checkProgress(): Promise<void> {
    const { engine } = this.#options;
    if (this.#hung !== null) {
      await this.#tryToken(this.#hung);
      this.#hung = null;
    }
    const stalledMs = await this.#progress.stalledMs(() => this.#counters());
    if (stalledMs === null || !engine.isUp) return;
    this.#hung = `its core hangs: requests wait, and nothing has moved for ${Math.round(stalledMs / 1000)} s`;
    throw new Unfit(this.#hung, "lost");
  }

  async #counters(): Promise<string | null> {
    const { code, text } = await this.#query("/metrics");
    return code === 200 ? countersIn(text) : null;
  }

  /** Asks for one token, the only proof that an engine without requests works. An engine that does not know the path cannot prove it. */
  async #tryToken(hung: string): Promise<void> {
    const model = this.#options.engine.models[0]?.id;
    const body = JSON.stringify({ model, prompt: ".", max_tokens: 1 });
    const { code } = await this.#query("/v1/completions", body).catch((error: unknown) => {
      throw isUnreached(error) ? error : new Unfit(hung, "lost");
    });
    if (code >= 500) throw new Unfit(hung, "lost");
  }

  async #get(path: string): Promise<string> {
    const { code, text } = await this.#query(path);
    if (code === 401) throw new Unfit(`${path} answers 401: set [gateway] engine_key`);
    // vLLM's server answers so once its core is dead.
    const kind = path === "/health" ? "lost" : "away";
    if (code !== 200) throw new Unfit(`${path} answers ${code}`, kind);
    return text;
  }

  /** Sends GET, or POST where there is a JSON body. */
  async #query(
    path: string,
    body: string | null = null,
    timeoutMs = GATEWAY_HEALTH_TIMEOUT_MS,
  ): Promise<{ code: number; text: string }> {
    const { access } = this.#options.engine;
    const method = body === null ? "GET" : "POST";
    const headers = [...access.fields];
    if (body !== null) headers.push("content-type", "application/json");
    const late = new Ending();
    const reason = `${path} has no answer after ${timeoutMs} ms`;
    const timer = setTimeout(() => late.abort(new Silent(reason)), timeoutMs);
    try {
      const asked = { method, path, headers, body, signal: late };
      const { statusCode: code, text } = await this.#calls.text(asked, GATEWAY_MODELS_BYTES_MAX);
      if (text === null) throw new Unfit(`${path} answers without an end`);
      return { code, text };
    } finally {
      clearTimeout(timer);
    }
  }

  #fail(error: unknown): void {
    const { engine, logger, onChange } = this.#options;
    if (this.#isClosed) return;
    const reason = reasonOf(error);
    const wasUp = engine.isUp;
    const died = isUnreached(error);
    // Another process takes its place.
    if (died) this.#hung = null;
    engine.setDown(reason, died ? "died" : error instanceof Unfit ? error.kind : "lost");
    // An engine that never answered is logged too, because its address may be wrong.
    if (wasUp || !this.#isDownSaid) {
      this.#isDownSaid = true;
      logger.warn(
        { engine: engine.name, reason },
        "engine does not answer: requests go to other engines",
      );
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

/** The engine did not answer in time. */
class Silent extends Error {}

/** The engine answers, but not as one that can serve. */
class Unfit extends Error {
  readonly kind: DownKind;

  constructor(reason: string, kind: DownKind = "away") {
    super(reason);
    this.kind = kind;
  }
}

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
  const code = codeOf(error);
  return typeof code === "string" && !message.includes(code) ? `${code}: ${message}` : message;
}
