// Owns the figures of a vault's durable tier: its index, look-ups, reopening, cold reads against the disk itself, bytes written.
import { runExample } from "./lib/cargo.js";
import { describe } from "./lib/figures.js";

export const title = "The vault's durable tier, beside raw reads of the same disk";

/** By the beginning of a figure's name. */
const FLOORS = [
  ["index of", { on: "value", most: 120 }],
  ["look-up of 2,000 keys, on disk, p99", { on: "value", most: 0.5 }],
  ["reopening", { on: "value", most: 1 }],
  ["cold restore over raw reads", { on: "value", least: 0.8 }],
  ["bytes written per byte", { on: "value", most: 1.1 }],
];

export async function run({ isQuick }) {
  const rows = await runExample("disk_tier", isQuick ? ["--quick"] : []);
  const figures = rows.map((row) => {
    const [, floor] = FLOORS.find(([name]) => row.name.startsWith(name)) ?? [];
    return describe(floor === undefined ? row : { ...row, floor });
  });
  return { figures };
}
