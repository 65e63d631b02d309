// Owns the model name of each namespace: sent by sidecars, kept beside the records, used to flush by model.
import type { Namespace } from "../../base/block.ts";
import { TierkvError } from "../../base/errors.ts";
import { MODEL_NAMES_MAX, NAME_BYTES_MAX, VAULT_MODELS_MAX } from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import { readOwnFile, writeOwnFile } from "../../base/native.ts";

const FILE = "models.json";
/** Worst case per entry: a hexadecimal namespace, names with every byte escaped by JSON, and punctuation. */
const FILE_BYTES_MAX = VAULT_MODELS_MAX * (MODEL_NAMES_MAX * (NAME_BYTES_MAX * 6 + 3) + 72);

export class ModelNames {
  /** By namespace, in hexadecimal; several names where engines were given one model under several, the newest last. */
  readonly #models = new Map<string, string[]>();
  /** null: names are not kept over a restart. */
  readonly #dataDir: string | null;
  readonly #logger: Logger;

  constructor(dataDir: string | null, logger: Logger) {
    this.#dataDir = dataDir;
    this.#logger = logger;
    if (dataDir !== null) this.#read(dataDir);
  }

  /** Names a namespace and returns whether it was new. Throws BAD_ARGUMENT for an invalid name, OVERLOAD beyond VAULT_MODELS_MAX. */
  learn(namespace: Namespace, model: string): boolean {
    const bytes = Buffer.byteLength(model);
    if (bytes === 0 || bytes > NAME_BYTES_MAX) {
      const reason = `a model name of ${bytes} bytes: expected 1 to ${NAME_BYTES_MAX}`;
      throw new TierkvError("BAD_ARGUMENT", { reason });
    }
    const key = namespace.toString("hex");
    const known = this.#models.get(key) ?? [];
    if (known.includes(model)) return false;
    const isNew = known.length === 0;
    if (this.#models.size >= VAULT_MODELS_MAX && isNew) {
      const limit = { count: this.#models.size, limit: VAULT_MODELS_MAX };
      throw new TierkvError("OVERLOAD", { what: "namespaces with a name", ...limit });
    }
    this.#models.set(key, [...known, model].slice(-MODEL_NAMES_MAX));
    this.#write();
    return isNew;
  }

  forget(namespace: Namespace): void {
    if (this.#models.delete(namespace.toString("hex"))) this.#write();
  }

  /** Returns the model's name; empty: unknown. */
  modelOf(namespace: Buffer): string {
    return this.#models.get(namespace.toString("hex"))?.at(-1) ?? "";
  }

  /** Returns the latest names, at most `most`. */
  names(most: number): string[] {
    return [...new Set([...this.#models.values()].flat())].slice(-most);
  }

  /** The namespaces of a model, in hexadecimal. */
  namespacesOf(model: string): string[] {
    return [...this.#models].filter(([, names]) => names.includes(model)).map(([key]) => key);
  }

  #read(dataDir: string): void {
    try {
      const bytes = readOwnFile(dataDir, FILE, FILE_BYTES_MAX);
      if (bytes === null) return;
      const entries = Object.entries(JSON.parse(bytes.toString("utf8")) as object);
      for (const [key, said] of entries.slice(0, VAULT_MODELS_MAX)) {
        const names: unknown[] = Array.isArray(said) ? said : [];
        const isSound = names.length > 0 && names.every((name) => typeof name === "string");
        if (/^[0-9a-f]{64}$/.test(key) && isSound)
          this.#models.set(key, names.slice(-MODEL_NAMES_MAX));
      }
    } catch (error) {
      // A warning suffices, because look-ups need no names and sidecars send them again.
      this.#logger.warn({ err: error, dataDir }, "the names of models could not be read");
    }
  }

  #write(): void {
    const dataDir = this.#dataDir;
    if (dataDir === null) return;
    try {
      writeOwnFile(dataDir, FILE, Buffer.from(JSON.stringify(Object.fromEntries(this.#models))));
    } catch (error) {
      this.#logger.warn({ err: error, dataDir }, "the names of models were not written");
    }
  }
}
