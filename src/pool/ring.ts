// Owns the hash ring: who owns a name, the same on every machine that knows the same nodes, with little moved when one comes or goes.
import { createHash } from "node:crypto";
import { RING_NODES, RING_SAMPLES, RING_TURNS } from "../limits-pool.ts";

export interface RingNode<Node> {
  /** Places it on the ring: the same on every machine. */
  name: string;
  node: Node;
  /** Its share of names beside the others, above 0; 1 when left out. */
  weight?: number;
}

/** Whole digests: the published ring whose owners these are compares all 128 bits. In hex, because texts compare fast. */
function placeOf(name: string | Buffer): string {
  return createHash("md5").update(name).digest("hex");
}

const placesOf = (name: string): string[] =>
  Array.from({ length: RING_NODES }, (_none, at) => placeOf(`${name}-vn-${at}`));

export class Ring<Node> {
  readonly #places: readonly string[];
  readonly #nodes: readonly Node[];
  /** Of nodes whose weights differ; null: all weigh the same. */
  readonly #weighted: readonly Weighted<Node>[] | null;

  constructor(nodes: readonly RingNode<Node>[]) {
    const all = nodes.flatMap(({ name, node }) => placesOf(name).map((place) => ({ place, node })));
    all.sort((a, b) => (a.place < b.place ? -1 : 1));
    this.#places = all.map(({ place }) => place);
    this.#nodes = all.map(({ node }) => node);
    const isAlike = nodes.every(({ weight = 1 }) => weight === (nodes[0]?.weight ?? 1));
    this.#weighted = isAlike ? null : nodes.map((node) => new Weighted(node));
    if (this.#weighted !== null) evenOut(this.#weighted);
  }

  /** The owner of a name first, then who would own it without that one, and so on; each node once. */
  *ownersOf(name: string | Buffer): Generator<Node> {
    const place = placeOf(name);
    if (this.#weighted !== null) {
      yield* nearestFirst(this.#weighted, place);
      return;
    }
    const seen = new Set<Node>();
    const from = after(this.#places, place);
    for (let step = 0; step < this.#nodes.length; step += 1) {
      const node = this.#nodes[(from + step) % this.#nodes.length];
      if (node === undefined || seen.has(node)) continue;
      seen.add(node);
      yield node;
    }
  }
}

/** Distances are told apart by this many leading bits of a digest: a double holds no more. */
const DISTANCE_BITS = 52;
const DISTANCES = 2 ** DISTANCE_BITS;

function numberOf(place: string): number {
  return Number.parseInt(place.slice(0, DISTANCE_BITS / 4), 16);
}

/**
 * The owner on the ring is the node with the shortest way from a name to one of its positions. Here ways count as divided by
 * weights: shares are as weights are, alike ones give the ring itself, and another node or weight moves next to nothing between the others.
 */
class Weighted<Node> {
  readonly node: Node;
  readonly weight: number;
  /** What ways are divided by. */
  pull: number;
  readonly #places: readonly number[];

  constructor({ name, node, weight = 1 }: RingNode<Node>) {
    this.node = node;
    this.weight = weight;
    this.pull = weight;
    this.#places = placesOf(name)
      .map(numberOf)
      .toSorted((a, b) => a - b);
  }

  /** Not yet divided. */
  wayFrom(place: number): number {
    const next = this.#places[after(this.#places, place)];
    return next === undefined ? DISTANCES + (this.#places[0] ?? 0) - place : next - place;
  }
}

/** A hundred positions leave shares a tenth off: corrected until those of evenly spread places are as the weights are. */
function evenOut<Node>(nodes: readonly Weighted<Node>[]): void {
  const total = nodes.reduce((sum, { weight }) => sum + weight, 0);
  const ways = Array.from({ length: RING_SAMPLES }, (_none, at) => {
    const place = ((at + 0.5) / RING_SAMPLES) * DISTANCES;
    return nodes.map((node) => node.wayFrom(place));
  });
  for (let turn = 0; turn < RING_TURNS; turn += 1) {
    const counts = nodes.map(() => 0);
    for (const way of ways) {
      let best = 0;
      for (let at = 1; at < nodes.length; at += 1) {
        if (pulled(way, nodes, at) < pulled(way, nodes, best)) best = at;
      }
      counts[best] = (counts[best] ?? 0) + 1;
    }
    for (const [at, node] of nodes.entries()) {
      const share = Math.max(1, counts[at] ?? 0) / RING_SAMPLES;
      node.pull *= node.weight / total / share;
    }
  }
}

function pulled<Node>(
  ways: readonly number[],
  nodes: readonly Weighted<Node>[],
  at: number,
): number {
  return (ways[at] ?? 0) / (nodes[at]?.pull ?? 1);
}

function nearestFirst<Node>(nodes: readonly Weighted<Node>[], place: string): Node[] {
  const from = numberOf(place);
  return nodes
    .map((weighted) => ({ node: weighted.node, way: weighted.wayFrom(from) / weighted.pull }))
    .toSorted((a, b) => a.way - b.way)
    .map(({ node }) => node);
}

/** The first position behind `place`; as many as there are: none. */
function after<Place extends string | number>(places: readonly Place[], place: Place): number {
  let [low, high] = [0, places.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    const at = places[middle];
    if (at !== undefined && at <= place) low = middle + 1;
    else high = middle;
  }
  return low;
}
