// Owns the hash ring: the owner of a name, equal on all machines that know the same nodes; changes move few names.
import { hash } from "node:crypto";
import { RING_NODES, RING_SAMPLES, RING_TURNS } from "../base/limits/pool.ts";

export interface RingNode<Node> {
  /** Positions the node on the ring; the same on every machine. */
  name: string;
  node: Node;
  /** Share of names relative to the other nodes, above 0; default 1. */
  weight?: number;
}

/** Returns the whole digest, because the published ring that this one must match compares 128 bits; hex compares fast. */
export function placeOf(name: string | Buffer): string {
  return hash("md5", name, "hex");
}

const placesOf = (name: string): string[] =>
  Array.from({ length: RING_NODES }, (_none, at) => placeOf(`${name}-vn-${at}`));

export class Ring<Node> {
  readonly #places: readonly string[];
  readonly #nodes: readonly Node[];
  /** Nodes when their weights differ; null: all weigh the same. */
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

  /** Yields the owner of a name, then the owner without that node, and so on; each node once. */
  ownersOf(name: string | Buffer): Generator<Node> {
    return this.ownersAt(placeOf(name));
  }

  /** Yields the same for a place, as `placeOf` returns it. */
  *ownersAt(place: string): Generator<Node> {
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

/** Leading bits of a digest that distances use, because a double holds no more. */
const DISTANCE_BITS = 52;
const DISTANCES = 2 ** DISTANCE_BITS;

function numberOf(place: string): number {
  return Number.parseInt(place.slice(0, DISTANCE_BITS / 4), 16);
}

/**
 * A name's owner is the node with the shortest distance from the name to one of its positions. Here distances are divided by
 * weights: shares follow weights, equal weights give the plain ring, and a change of one node moves few names between others.
 */
class Weighted<Node> {
  readonly node: Node;
  readonly weight: number;
  /** Divisor of distances. */
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

  /** Returns the distance before division. */
  wayFrom(place: number): number {
    return this.#wayTo(after(this.#places, place), place);
  }

  /** Returns the same for many places, in ascending order. */
  waysFrom(places: Float64Array): Float64Array {
    let next = 0;
    return places.map((place) => {
      while ((this.#places[next] ?? DISTANCES) <= place) next += 1;
      return this.#wayTo(next, place);
    });
  }

  #wayTo(next: number, place: number): number {
    const found = this.#places[next];
    return found === undefined ? DISTANCES + (this.#places[0] ?? 0) - place : found - place;
  }
}

/** Corrects the divisors until sampled shares match the weights, because a hundred positions leave shares a tenth off. */
function evenOut<Node>(nodes: readonly Weighted<Node>[]): void {
  const total = nodes.reduce((sum, { weight }) => sum + weight, 0);
  const places = Float64Array.from({ length: RING_SAMPLES }, (_none, at) => at + 0.5);
  const ways = nodes.map((node) =>
    node.waysFrom(places.map((at) => (at / RING_SAMPLES) * DISTANCES)),
  );
  for (let turn = 0; turn < RING_TURNS; turn += 1) {
    const best = new Float64Array(RING_SAMPLES).fill(Number.POSITIVE_INFINITY);
    const owner = new Uint32Array(RING_SAMPLES);
    for (const [number, node] of nodes.entries()) {
      const [own, { pull }] = [ways[number] ?? best, node];
      for (let at = 0; at < RING_SAMPLES; at += 1) {
        const way = (own[at] ?? 0) / pull;
        if (way >= (best[at] ?? 0)) continue;
        best[at] = way;
        owner[at] = number;
      }
    }
    const counts = new Float64Array(nodes.length);
    for (const number of owner) counts[number] = (counts[number] ?? 0) + 1;
    for (const [number, node] of nodes.entries()) {
      const share = Math.max(1, counts[number] ?? 0) / RING_SAMPLES;
      node.pull *= node.weight / total / share;
    }
  }
}

function nearestFirst<Node>(nodes: readonly Weighted<Node>[], place: string): Node[] {
  const from = numberOf(place);
  return nodes
    .map((weighted) => ({ node: weighted.node, way: weighted.wayFrom(from) / weighted.pull }))
    .toSorted((a, b) => a.way - b.way)
    .map(({ node }) => node);
}

/** Returns the index of the first position behind `place`, or the length where none is. */
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
