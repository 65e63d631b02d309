// Owns the layouts of the last lists of vaults, because a pool places by the list before a change, too, and often comes back to it.
import { LAYOUT_LISTS_MAX } from "../limits/pool.ts";
import { layoutOf } from "./layout.ts";
import type { Layout, Member } from "./layout.ts";

type Made = Map<number, Layout>;
/** The one that was used last is the last. */
const lists = new Map<string, Made>();

/** Layouts of one list by number, each made when it is wanted first. */
export function layoutsOf(members: readonly Member[], width: number): (number: number) => Layout {
  const list = JSON.stringify([members, width]);
  const made = lists.get(list) ?? new Map<number, Layout>();
  lists.delete(list);
  lists.set(list, made);
  for (const oldest of lists.keys()) {
    if (lists.size <= LAYOUT_LISTS_MAX) break;
    lists.delete(oldest);
  }
  return (number) => {
    const layout = made.get(number) ?? layoutOf(members, `${number}`, width);
    made.set(number, layout);
    return layout;
  };
}
