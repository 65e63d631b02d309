// Owns the order in which blocks of one vault are fetched: short plans pass long ones, and no plan waits for ever.
import type { Block } from "../slots/block.ts";

/** Blocks of one plan, in need order from `head` on. */
interface Part {
  readonly turn: number;
  blocks: Block[];
  head: number;
  /** Of those that wait. */
  bytes: number;
}

/**
 * A plan's turn is what had been fetched when it began, and its own bytes: a short one passes what would take longer than itself,
 * and a long one waits for others no longer than alone.
 */
export class FetchQueue {
  /** The earliest turn first. */
  #parts: Part[] = [];
  #size = 0;

  get size(): number {
    return this.#size;
  }

  add(block: Block, turn: number, bytes: number): void {
    this.#size += 1;
    let at = this.#parts.length;
    while (at > 0 && (this.#parts[at - 1]?.turn ?? 0) > turn) at -= 1;
    const before = this.#parts[at - 1];
    if (before?.turn !== turn) this.#parts.splice(at, 0, { turn, blocks: [block], head: 0, bytes });
    else {
      before.blocks.push(block);
      before.bytes += bytes;
    }
  }

  /** The next one; `shift` takes it. */
  get first(): Block | undefined {
    const [part] = this.#parts;
    return part?.blocks[part.head];
  }

  shift(bytes: number): void {
    const [part] = this.#parts;
    if (part === undefined) return;
    this.#size -= 1;
    part.head += 1;
    part.bytes -= bytes;
    if (part.head === part.blocks.length) this.#parts.shift();
  }

  /** All that wait, in order. */
  all(): Block[] {
    return this.#parts.flatMap(({ blocks, head }) => blocks.slice(head));
  }

  /** Of blocks whose turn is later. */
  bytesAfter(turn: number): number {
    return this.#parts.reduce((sum, part) => sum + (part.turn > turn ? part.bytes : 0), 0);
  }

  /** Leaves only what is still wanted. */
  keep(isWanted: (block: Block) => boolean, bytesOf: (blocks: readonly Block[]) => number): void {
    for (const part of this.#parts) {
      part.blocks = part.blocks.slice(part.head).filter(isWanted);
      part.head = 0;
      part.bytes = bytesOf(part.blocks);
    }
    this.#parts = this.#parts.filter(({ blocks }) => blocks.length > 0);
    this.#size = this.#parts.reduce((sum, { blocks }) => sum + blocks.length, 0);
  }
}
