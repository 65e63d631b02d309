// Owns what a look-up lets the vaults know about who goes first: what no prompt can reach, and states that are superseded.
import type { Namespace } from "../../block.ts";
import type { AskedGroup, HintOptions } from "./hinted.ts";
import type { LookupAnswer } from "./lookup.ts";
import { Orphans } from "./orphans.ts";
import { Superseded } from "./superseded.ts";

export class Hints {
  readonly #orphans: Orphans;
  readonly #superseded: Superseded;

  constructor(options: HintOptions) {
    this.#orphans = new Orphans(options);
    this.#superseded = new Superseded(options);
  }

  /** `tokens`: the boundary that was chosen. */
  note(
    namespace: Namespace,
    groups: readonly AskedGroup[],
    answer: LookupAnswer,
    tokens: number,
  ): void {
    this.#orphans.note(namespace, groups, answer);
    this.#superseded.note(namespace, groups, answer, tokens);
  }

  close(): void {
    this.#orphans.close();
    this.#superseded.close();
  }
}
