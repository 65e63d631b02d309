// Owns the states that a deeper boundary of their prompt supersedes: their vault is told a while later, and lets those go first that nobody fetched.
import { hasBit } from "../../block.ts";
import type { Namespace } from "../../block.ts";
import { DEMOTE_KEYS_MAX, JUNCTIONS_MAX } from "../../limits.ts";
import { firstHole, packShards } from "./hinted.ts";
import type { AskedGroup, HintOptions } from "./hinted.ts";
import type { LookupAnswer } from "./lookup.ts";
import { SecondLooks } from "./second-looks.ts";

/** Shelf key and packed keys of all shards. */
interface State {
  key: string;
  packed: Buffer;
  owner: number;
}

/**
 * An engine that computes a long answer leaves a state at every boundary it crosses, and the next turn restores to the last one.
 * Turn boundaries were fetched once, which their vault knows; junctions, where a prompt left what others had computed, are known here.
 */
export class Superseded {
  readonly #options: HintOptions;
  readonly #looks: SecondLooks;
  /** Shelf keys, the latest last. */
  readonly #junctions = new Set<string>();

  constructor(options: HintOptions) {
    this.#options = options;
    this.#looks = new SecondLooks(options.logger);
  }

  /** Takes note of a look-up and of the boundary that was chosen, in prompt tokens. */
  note(
    namespace: Namespace,
    groups: readonly AskedGroup[],
    { keys, held, owners, silent }: LookupAnswer,
    tokens: number,
  ): void {
    if (silent.size > 0 || groups.every((group) => group.class !== "ssm")) return;
    const start = Math.max(...groups.map((group) => group.from * group.tokens));
    const leftAt = Math.min(...groups.map((group, at) => heldTokens(group, held[at])));
    const states: State[] = [];
    let name = "";
    for (const [at, group] of groups.entries()) {
      if (group.class !== "ssm") continue;
      const known = keys[at] ?? [];
      // Computing on leaves a state there, if the engine finds it worth one.
      if (leftAt > tokens) this.#noteJunction(known[Math.floor(leftAt / group.tokens) - 1]);
      if (tokens <= start) continue;
      const last = tokens / group.tokens - 1;
      name ||= known[last] ?? "";
      // Most prompts are thought over already: then nothing is packed.
      if (!this.#looks.hasRoomFor(name)) continue;
      const on = (index: number): number => owners[at]?.[index] ?? 0;
      states.push(...this.#before(last, group, known, on, held[at]));
    }
    if (states.length === 0) return;
    this.#looks.add(name, () => this.#tell(namespace, states));
  }

  close(): void {
    this.#looks.close();
  }

  /** Held states before block `last`, the latest first, DEMOTE_KEYS_MAX at most. */
  #before(
    last: number,
    group: AskedGroup,
    keys: readonly string[],
    ownerOf: (index: number) => number,
    held?: Buffer,
  ): State[] {
    const { shards } = this.#options;
    const states: State[] = [];
    for (let index = last - 1; index >= 0; index -= 1) {
      const key = keys[index];
      if (key === undefined || held === undefined || !hasBit(held, index)) continue;
      if (this.#junctions.has(key)) continue;
      if ((states.length + 1) * shards > DEMOTE_KEYS_MAX) break;
      const packed = packShards(group, [index], shards);
      states.push({ key, packed, owner: ownerOf(index) });
    }
    return states;
  }

  /** Tells their vaults of those that no prompt has branched off at meanwhile. */
  async #tell(namespace: Namespace, states: readonly State[]): Promise<void> {
    const { gates, counters } = this.#options;
    const still = states.filter(({ key }) => !this.#junctions.has(key));
    for (const [vault, told] of gates.ssm.entries()) {
      const keys = still.flatMap(({ owner, packed }) => (owner === vault ? [packed] : []));
      if (keys.length === 0) continue;
      const demoted = await told.demote(namespace, Buffer.concat(keys), true);
      counters.add("states_superseded", demoted);
    }
  }

  #noteJunction(key: string | undefined): void {
    if (key === undefined) return;
    this.#junctions.delete(key);
    this.#junctions.add(key);
    if (this.#junctions.size <= JUNCTIONS_MAX) return;
    for (const oldest of this.#junctions) {
      this.#junctions.delete(oldest);
      return;
    }
  }
}

/** Prompt tokens up to which a group that needs every block has them all; the whole prompt for others. */
function heldTokens(group: AskedGroup, held?: Buffer): number {
  if (group.tail !== 0 || held === undefined) return Number.POSITIVE_INFINITY;
  return firstHole(group, held) * group.tokens;
}
