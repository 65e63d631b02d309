// Owns the hash ring: who owns a name, the same on every machine that knows the same nodes, with little moved when one comes or goes.
import { createHash } from "node:crypto";
import { RING_NODES } from "../limits-pool.ts";

export interface RingNode<Node> {
  /** Places it on the ring: the same on every machine. */
  name: string;
  node: Node;
  /** Its share of names beside the others; 1 when left out. */
  weight?: number;
}

/** Whole digests: the published ring whose owners these are compares all 128 bits. In hex, because texts compare fast. */
function placeOf(name: string | Buffer): string {
  return createHash("md5").update(name).digest("hex");
}

export class Ring<Node> {
  readonly #places: readonly string[];
  readonly #nodes: readonly Node[];

  constructor(nodes: readonly RingNode<Node>[]) {
    const all = nodes.flatMap(({ name, node, weight = 1 }) =>
      Array.from({ length: Math.max(1, Math.round(RING_NODES * weight)) }, (_none, at) => ({
        place: placeOf(`${name}-vn-${at}`),
        node,
      })),
    );
    all.sort((a, b) => (a.place < b.place ? -1 : 1));
    this.#places = all.map(({ place }) => place);
    this.#nodes = all.map(({ node }) => node);
  }

  /** The owner of a name first, then who would own it without that one, and so on; each node once. */
  *ownersOf(name: string | Buffer): Generator<Node> {
    const seen = new Set<Node>();
    const from = this.#after(placeOf(name));
    for (let step = 0; step < this.#nodes.length; step += 1) {
      const node = this.#nodes[(from + step) % this.#nodes.length];
      if (node === undefined || seen.has(node)) continue;
      seen.add(node);
      yield node;
    }
  }

  /** The first position behind `place`. */
  #after(place: string): number {
    let [low, high] = [0, this.#places.length];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if ((this.#places[middle] ?? "") <= place) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
