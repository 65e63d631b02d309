// Owns the figures of a vault's durable tier: index, look-ups, reopening, cold reads beside raw ones, bytes written.
import { runExample } from "./lib/cargo.js";
import { describe } from "./lib/figures.js";

export const title = "The vault's durable tier, beside raw reads of the same disk";

/** Floors by the beginning of a figure's name. */
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
  const notes = [
    "a million records of 700 bytes, each in a page of its own; half of the keys of a look-up are there, drawn at random, and nothing of them is in a cache",
    "a look-up's time is memory latency: about one wait for a key that is not there, two for one that is (its line of the table, its entry)",
    "reopening: until every record can be looked up again; before each, a process writes a fiftieth of them and is killed once they are durable",
    "records in memory only: beside the bytes of each, its entry of 64 bytes, its part of a table, and 24 bytes in front of it",
    "cold restore and raw reads: 4,000 records of 256 KiB, both into memory that is fresh from the kernel, turn by turn",
  ];
  return { figures, notes };
}
