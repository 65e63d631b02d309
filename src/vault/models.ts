// Owns which model each namespace belongs to: told by sidecars, kept beside the records, used to flush by model.
import { readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Namespace } from "../block.ts";
import { TierkvError } from "../errors.ts";
import { NAME_BYTES_MAX, VAULT_MODELS_MAX } from "../limits.ts";
import type { Logger } from "../log.ts";

const FILE = "models.json";

export class ModelNames {
  /** By namespace, in hexadecimal. */
  readonly #models = new Map<string, string>();
  readonly #file: string | null;
  readonly #logger: Logger;

  /** `dataDir` null: nothing outlives this process. */
  constructor(dataDir: string | null, logger: Logger) {
    this.#file = dataDir === null ? null : join(dataDir, FILE);
    this.#logger = logger;
    if (this.#file !== null) this.#read(this.#file);
  }

  /** Whether the namespace was not known. Throws BAD_ARGUMENT for a name that is none, OVERLOAD when there are too many. */
  learn(namespace: Namespace, model: string): boolean {
    const bytes = Buffer.byteLength(model);
    if (bytes === 0 || bytes > NAME_BYTES_MAX) {
      const reason = `a model name of ${bytes} bytes: expected 1 to ${NAME_BYTES_MAX}`;
      throw new TierkvError("BAD_ARGUMENT", { reason });
    }
    const key = namespace.toString("hex");
    if (this.#models.get(key) === model) return false;
    const isNew = !this.#models.has(key);
    if (this.#models.size >= VAULT_MODELS_MAX && isNew) {
      const limit = { count: this.#models.size, limit: VAULT_MODELS_MAX };
      throw new TierkvError("OVERLOAD", { what: "namespaces with a name", ...limit });
    }
    this.#models.set(key, model);
    this.#write();
    return isNew;
  }

  /** The namespaces of a model, in hexadecimal. */
  namespacesOf(model: string): string[] {
    return [...this.#models].filter(([, name]) => name === model).map(([key]) => key);
  }

  #read(file: string): void {
    try {
      const entries = Object.entries(JSON.parse(readFileSync(file, "utf8")) as object);
      for (const [key, model] of entries.slice(0, VAULT_MODELS_MAX)) {
        if (/^[0-9a-f]{64}$/.test(key) && typeof model === "string") this.#models.set(key, model);
      }
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === "ENOENT") return;
      // Names are for people: records are found without them, and sidecars tell them again.
      this.#logger.warn({ err: error, file }, "the names of models could not be read");
    }
  }

  #write(): void {
    if (this.#file === null) return;
    const fresh = `${this.#file}.new`;
    try {
      writeFileSync(fresh, JSON.stringify(Object.fromEntries(this.#models)), { mode: 0o600 });
      renameSync(fresh, this.#file);
    } catch (error) {
      this.#logger.warn({ err: error, file: this.#file }, "the names of models were not written");
    }
  }
}
