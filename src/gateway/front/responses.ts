// Owns which engine holds a stored answer of the Responses API, and whose it is: later requests for it go there, also after a restart.
import { closeSync, readFileSync } from "node:fs";
import { appendFile, rename, rm, writeFile } from "node:fs/promises";
import { dirname } from "node:path";
import { makeDirectory } from "../../base/directory.ts";
import { toTierkvError } from "../../base/errors.ts";
import {
  GATEWAY_RESPONSES_BYTES_MAX,
  GATEWAY_RESPONSES_KEPT_MAX,
} from "../../base/limits/gateway.ts";
import type { Logger } from "../../base/log.ts";
import { openOwn } from "../../base/own-file.ts";
import { randomId } from "../../base/time.ts";
import type { Engine } from "../engines/engine.ts";
import { fieldsOf } from "./body.ts";

const CREATE = /^\/v1\/responses$/;
/** `render` is a route of its own, which names no stored answer. */
const OF_ONE = /^\/v1\/responses\/(?!render$)([^/]+)/;
/** The first `id` of an answer or of its first event. */
const ID = /"id": ?"(resp_[\w-]{1,128})"/;
/** Characters in which the id of an answer is looked for. */
const HEAD_CHARS = 4096;

interface Stored {
  /** Name of the engine. */
  engine: string;
  tenant: string | null;
}

/** Where a request must go: `any`: to any engine; `nowhere`: its answer is another tenant's, or on an engine that is gone. */
export type Place = "any" | "nowhere" | Engine;

/** Remembers the last GATEWAY_RESPONSES_KEPT_MAX answers, in memory and as lines of a file: a JSON list `[id, engine, tenant]`. */
export class StoredResponses {
  readonly #path: string | null;
  readonly #logger: Logger;
  readonly #stored = new Map<string, Stored>();
  /** Lines not yet written, and those in the file. */
  #pending: string[] = [];
  #lines = 0;
  #writing: Promise<void> | null = null;
  #isFailing = false;

  /** `path` null: a restart forgets them. A file that cannot be read is logged and replaced. */
  constructor(path: string | null, logger: Logger) {
    this.#path = path;
    this.#logger = logger;
    if (path !== null) this.#load(path);
  }

  /** Returns a function for the first bytes of an answer to this request, which remembers its id; undefined: none is stored. */
  onBegun(
    path: string,
    tenant: string | null,
  ): ((engine: Engine, chunk: Buffer) => void) | undefined {
    if (!CREATE.test(path)) return undefined;
    return ({ name }, chunk) => {
      const [, id] = ID.exec(chunk.toString("latin1", 0, HEAD_CHARS)) ?? [];
      if (id === undefined) return;
      this.#keep(id, { engine: name, tenant });
      this.#write(lineOf(id, { engine: name, tenant }));
    };
  }

  /** Returns the engine that holds the answer a request names, in its path or as `previous_response_id`. */
  placeOf(path: string, body: unknown, tenant: string | null, engines: readonly Engine[]): Place {
    const [, named] = OF_ONE.exec(path) ?? [];
    const { previous_response_id: previous } = CREATE.test(path) ? fieldsOf(body) : {};
    const id = named ?? previous;
    if (typeof id !== "string") return "any";
    const stored = this.#stored.get(id);
    // Another gateway may have seen it created. Engines know no tenants, so a tenant's request must be sure.
    if (stored === undefined) return tenant === null ? "any" : "nowhere";
    const holder = engines.find(({ name }) => name === stored.engine);
    return stored.tenant === tenant && holder !== undefined ? holder : "nowhere";
  }

  /** Resolves when all is written. */
  async close(): Promise<void> {
    while (this.#writing !== null) await this.#writing;
  }

  #keep(id: string, stored: Stored): void {
    this.#stored.delete(id);
    this.#stored.set(id, stored);
    const [oldest] = this.#stored.keys();
    if (this.#stored.size > GATEWAY_RESPONSES_KEPT_MAX && oldest !== undefined)
      this.#stored.delete(oldest);
  }

  #load(path: string): void {
    try {
      const text = readOwn(path);
      for (const line of text.split("\n").filter((one) => one !== "")) {
        const { id, stored } = storedIn(line);
        if (id !== null) this.#keep(id, stored);
        this.#lines += 1;
      }
    } catch (error) {
      if (error instanceof Error && "code" in error && error.code === "ENOENT") return;
      // Whatever is there is replaced with the next answer.
      this.#lines = Infinity;
      this.#sayFailure(error);
    }
  }

  #write(line: string): void {
    if (this.#path === null) return;
    // Lines that wait are at most those that a new file has.
    if (this.#pending.length < GATEWAY_RESPONSES_KEPT_MAX) this.#pending.push(line);
    this.#writing ??= this.#writeAll(this.#path).finally(() => (this.#writing = null));
  }

  async #writeAll(path: string): Promise<void> {
    try {
      makeDirectory(dirname(path));
      while (this.#pending.length > 0) {
        const lines = this.#pending;
        this.#pending = [];
        if (this.#lines + lines.length > 2 * GATEWAY_RESPONSES_KEPT_MAX) await this.#replace(path);
        else {
          await appendFile(path, lines.join(""), { mode: 0o600 });
          this.#lines += lines.length;
        }
      }
      this.#isFailing = false;
    } catch (error) {
      this.#sayFailure(error);
    }
  }

  /** Writes a new file of what is remembered. */
  async #replace(path: string): Promise<void> {
    const fresh = `${path}.${randomId(4)}`;
    const lines = [...this.#stored].map(([id, stored]) => lineOf(id, stored));
    try {
      await writeFile(fresh, lines.join(""), { mode: 0o600, flag: "wx" });
      await rename(fresh, path);
      this.#lines = lines.length;
    } finally {
      await rm(fresh, { force: true });
    }
  }

  #sayFailure(error: unknown): void {
    if (this.#isFailing) return;
    this.#isFailing = true;
    const { message: reason } = toTierkvError(error);
    const fix = "set [gateway] index_file to a place of this user's";
    const words = "stored answers are not kept for the next gateway";
    this.#logger.warn({ path: this.#path, reason, fix }, words);
  }
}

const lineOf = (id: string, { engine, tenant }: Stored): string =>
  `${JSON.stringify([id, engine, tenant])}\n`;

/** Returns the parts of a line; the id is null where the line is damaged, as the last one may be after a power failure. */
function storedIn(line: string): { id: string | null; stored: Stored } {
  const none = { id: null, stored: { engine: "", tenant: null } };
  try {
    const [id, engine, tenant] = JSON.parse(line) as unknown[];
    if (typeof id !== "string" || typeof engine !== "string") return none;
    if (tenant !== null && typeof tenant !== "string") return none;
    return { id, stored: { engine, tenant } };
  } catch {
    return none;
  }
}

/** Returns the text of a file of this user; throws for others', and for one larger than it can have become. */
function readOwn(path: string): string {
  const refuse = (reason: string): never => {
    throw new Error(reason);
  };
  const { handle, stats } = openOwn(path, refuse);
  try {
    if (stats.size > GATEWAY_RESPONSES_BYTES_MAX) refuse(`it has ${stats.size} bytes`);
    return readFileSync(handle, "utf8");
  } finally {
    closeSync(handle);
  }
}
