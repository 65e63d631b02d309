// Owns lists of vaults that outlive a sidecar: its next run begins with the last list of a source, even if no vault answers.
import { isVaultClass } from "../base/block.ts";
import { toTierkvError } from "../base/errors.ts";
import { LISTED_VAULTS_MAX } from "../base/limits/pool.ts";
import type { Logger } from "../base/log.ts";
import { isAbsent, readPrivate, writePrivate } from "../base/private-file.ts";
import type { ListedVault, SourceKind, VaultSource } from "./source.ts";

const KEY = "[vault] state_dir";

/** Returns the list of the last run; empty where it cannot be read, because the source will report a new one. */
export function readKept(path: string, logger: Logger): ListedVault[] {
  try {
    if (isAbsent(path, KEY)) return [];
    const all = JSON.parse(readPrivate(path, KEY)) as unknown;
    if (Array.isArray(all) && all.length <= LISTED_VAULTS_MAX && all.every(isListed)) return all;
    logger.warn({ path }, "a kept list of vaults is damaged and is ignored");
  } catch (error) {
    logger.warn({ err: toTierkvError(error), path }, "a kept list of vaults cannot be read");
  }
  return [];
}

function isListed(one: unknown): one is ListedVault {
  if (typeof one !== "object" || one === null) return false;
  const { address, class: of, certificate } = one as Partial<Record<keyof ListedVault, unknown>>;
  const isPem = certificate === null || typeof certificate === "string";
  return (
    typeof address === "string" &&
    /:\d+$/.test(address) &&
    (of === null || isVaultClass(of)) &&
    isPem
  );
}

/** Wraps another source: begins with the kept list, and keeps each new one. */
export class KeptSource implements VaultSource {
  readonly #source: VaultSource;
  readonly #path: string;
  readonly #logger: Logger;
  #said = "";

  constructor(source: VaultSource, path: string, logger: Logger) {
    this.#source = source;
    this.#path = path;
    this.#logger = logger;
  }

  get kind(): SourceKind {
    return this.#source.kind;
  }

  follow(onList: (list: readonly ListedVault[]) => void): void {
    const kept = readKept(this.#path, this.#logger);
    this.#said = textOf(kept);
    if (kept.length > 0) onList(kept);
    this.#source.follow((list) => {
      this.#keep(list);
      onList(list);
    });
  }

  close(): void {
    this.#source.close();
  }

  #keep(list: readonly ListedVault[]): void {
    const text = textOf(list);
    if (text === this.#said) return;
    this.#said = text;
    try {
      writePrivate(this.#path, text, KEY);
    } catch (error) {
      this.#logger.warn(
        { err: toTierkvError(error) },
        "a list of vaults is not kept over a restart",
      );
    }
  }
}

function textOf(list: readonly ListedVault[]): string {
  const all = list.map(({ address, class: of, certificate }) => {
    return { address, class: of, certificate };
  });
  return `${JSON.stringify(all)}\n`;
}
