// Owns the order in which blocks of one vault are fetched: short plans pass long ones, and no plan waits for ever.
import type { Block } from "../slots/block.ts";

/** Blocks of one plan in the order needed; the ones before `head` are taken. */
interface Part {
  readonly turn: number;
  blocks: Block[];
  head: number;
  /** Bytes of the waiting blocks. */
  bytes: number;
}

/**
 * A plan's turn is the bytes taken when it began plus its own. So a short plan passes longer ones, and a long plan waits for others
 * at most as long as for itself.
 */
export class FetchQueue {
  /** Earliest turn first. */
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

  /** Next block; `shift` takes it. */
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

  /** Returns all waiting blocks in order. */
  all(): Block[] {
    return this.#parts.flatMap(({ blocks, head }) => blocks.slice(head));
  }

  /** Returns the bytes of blocks with a later turn. */
  bytesAfter(turn: number): number {
    return this.#parts.reduce((sum, part) => sum + (part.turn > turn ? part.bytes : 0), 0);
  }

  /** Keeps only blocks that are still wanted. */
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
