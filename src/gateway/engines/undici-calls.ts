// Owns requests over TLS, which undici carries: the core's client speaks in the clear.
import { Readable } from "node:stream";
import type { Dispatcher, Pool } from "undici";
import {
  GATEWAY_BODY_KEPT_BYTES,
  GATEWAY_CONNECT_MS,
  GATEWAY_KEEPALIVE_MS,
} from "../../base/limits/gateway.ts";
import { idsIn } from "../../base/native.ts";
import type { EngineAccess } from "./access.ts";
import { textWithin } from "./answer.ts";
import type { Calls, EngineAnswer, EngineIds, EngineRequest, EngineText } from "./calls.ts";
import { Ending } from "./ending.ts";

const NO_IDS = new Uint32Array();

export class UndiciCalls implements Calls {
  /** Loaded where it is used alone, because it takes megabytes. */
  readonly #pool: Promise<Pool>;
  /** Whoever reads the pieces counts them. */
  readonly signs = 0;

  constructor(name: string, most: number, access: EngineAccess) {
    const options: Pool.Options = {
      connections: most,
      pipelining: 1,
      connect: { timeout: GATEWAY_CONNECT_MS, ...access.connectTo(name) },
      // A long prompt may take an hour. Health checks end what waits at an engine that does not answer.
      headersTimeout: 0,
      bodyTimeout: 0,
      keepAliveTimeout: GATEWAY_KEEPALIVE_MS,
      keepAliveMaxTimeout: GATEWAY_KEEPALIVE_MS,
    };
    this.#pool = import("undici").then(({ Pool: Made }) => new Made(access.urlOf(name), options));
  }

  async request(request: EngineRequest): Promise<EngineAnswer> {
    const { statusCode, headers, body } = await this.#send(request);
    return {
      statusCode,
      headers,
      first: "",
      isWhole: false,
      tokens: null,
      body: () => body,
      passTo: null,
      drop: () => void body.on("error", () => {}).destroy(),
    };
  }

  async text(request: EngineRequest, most: number): Promise<EngineText> {
    const { statusCode, body } = await this.#send(request);
    return { statusCode, text: await textWithin(body, most) };
  }

  async ids(request: EngineRequest, most: number): Promise<EngineIds> {
    const { statusCode, text } = await this.text(request, most);
    const ids = text === null ? NO_IDS : idsIn(Buffer.from(text));
    return { statusCode, ids: ids.length === 0 ? null : ids };
  }

  async #send(request: EngineRequest): Promise<Dispatcher.ResponseData> {
    const { method, path, headers = [], body = null, signal } = request;
    const pool = await this.#pool;
    return await pool.request({
      method,
      path,
      headers: [...headers],
      body: body instanceof Buffer ? toSend(body) : body,
      ...(signal === undefined ? {} : { signal: Ending.of(signal) }),
    });
  }

  async close(): Promise<void> {
    await (await this.#pool).close();
  }

  async destroy(): Promise<void> {
    await (await this.#pool).destroy();
  }
}

/** Returns a long body as a stream, which undici does not keep until the answer ends. */
function toSend(bytes: Buffer): Buffer | Readable | null {
  if (bytes.length <= GATEWAY_BODY_KEPT_BYTES) return bytes.length === 0 ? null : bytes;
  // Whole from the beginning, so that its length is known.
  const stream = new Readable({ read: () => {} });
  stream.push(bytes);
  stream.push(null);
  return stream;
}
