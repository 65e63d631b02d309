// Owns a cache of layouts by list of vaults, because a pool also places by the list before a change.
import { LAYOUT_LISTS_MAX } from "../base/limits/pool.ts";
import { layoutOf } from "./layout.ts";
import type { Layout, Member } from "./layout.ts";

type Made = Map<number, Layout>;
/** In order of use, most recent last. */
const lists = new Map<string, Made>();

/** Returns the layouts of one list by number, each made at its first use. */
export function layoutsOf(members: readonly Member[]): (number: number) => Layout {
  const list = JSON.stringify(members);
  const made = lists.get(list) ?? new Map<number, Layout>();
  lists.delete(list);
  lists.set(list, made);
  for (const oldest of lists.keys()) {
    if (lists.size <= LAYOUT_LISTS_MAX) break;
    lists.delete(oldest);
  }
  return (number) => {
    const layout = made.get(number) ?? layoutOf(members, `${number}`);
    made.set(number, layout);
    return layout;
  };
}
