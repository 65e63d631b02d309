// Owns the figures of the lanes: restore and save between two processes of the Rust core, beside plain TCP.
import { runExample } from "./lib/cargo.js";
import { describe, figure, median, quantile } from "./lib/figures.js";

const MIB = 2 ** 20;
const CONNECTIONS = [1, 2, 4];
const LANES_DEFAULT = 4;
/** Floors for the default number of lanes. */
const FLOORS = {
  [`restoreInt8${LANES_DEFAULT}`]: { on: "ratio", least: 0.7 },
  [`saveInt8${LANES_DEFAULT}`]: { on: "ratio", least: 0.45 },
};
const LOOKUP_FLOORS = { p50: { on: "value", most: 1 }, p99: { on: "value", most: 2 } };

export const title = "Lanes: arena to vault and back between two processes, beside plain TCP";

export async function run({ isQuick, say }) {
  say("two processes, lanes and plain TCP in turns");
  const [report] = await runExample("bench_lanes", isQuick ? ["--quick"] : []);
  const { samples, rounds, blocks, pageBytes } = report;
  const tcp = { restore: fastest(samples, "tcpIn"), save: fastest(samples, "tcpOut") };
  const figures = [];
  for (const codec of ["Int8", "Raw"]) {
    for (const what of ["restore", "save"]) {
      for (const lanes of CONNECTIONS)
        figures.push(...laneFigures(samples, tcp, { what, codec, lanes }));
      figures.push(...ceilingFigures(samples, tcp, { what, codec }));
    }
  }
  for (const [what, { name, connections }] of Object.entries(tcp)) {
    const label = `plain TCP, ${what === "save" ? "to" : "from"} the vault's process, ${connections} connections`;
    figures.push(figure(label, "GB/s", samples[`${name}Gbps`]));
    figures.push(figure(`${label}, processor time`, "s/GB", samples[`${name}CpuSPerGb`]));
  }
  const lookup = samples.lookup2000Ms;
  figures.push(
    describe({
      name: "look-up of 2000 keys, p50",
      unit: "ms",
      value: quantile(lookup, 0.5),
      floor: LOOKUP_FLOORS.p50,
    }),
    describe({
      name: "look-up of 2000 keys, p99",
      unit: "ms",
      value: quantile(lookup, 0.99),
      floor: LOOKUP_FLOORS.p99,
    }),
  );
  for (const lanes of CONNECTIONS) figures.push(...besideFigures(samples, lanes));
  const notes = [
    `${blocks} blocks of ${(pageBytes / MIB).toFixed(2)} MiB (16 tokens, 36 layers, 8 heads of 128, bf16), medians of ${rounds} rounds, every line measured once in each round`,
    "rates count wire bytes; restore ends when every block is verified and decoded in the arena, save when the vault has verified the last record",
    "beside the connection count of plain TCP that is fastest over all rounds: 1 MiB writes, reads straight into the same arena, nothing checked",
    "bare: the least that such work takes, without frames, sessions or hand-over: received, checked and decoded by one thread per connection while in the cache; or encoded, sent, received and checked; at the connection count that is fastest",
    "processor time: of both processes together, kernel included",
    "a block beside stores: one block after another is restored while all others are stored over the same lanes, their records made before",
  ];
  return { figures, notes };
}

function laneFigures(samples, tcp, { what, codec, lanes }) {
  const name = `${what}${codec}${lanes}`;
  const label = `${codec.toLowerCase()}: ${what}, ${lanes} lane${lanes > 1 ? "s" : ""}`;
  const beside = samples[`${tcp[what].name}Gbps`];
  const floor = FLOORS[name] ?? null;
  return [
    figure(label, "GB/s", samples[`${name}Gbps`], { beside, of: "plain TCP", floor }),
    figure(`${label}, processor time`, "s/GB", samples[`${name}CpuSPerGb`]),
  ];
}

/** Returns the time of a request on lanes that stores keep busy. */
function besideFigures(samples, lanes) {
  const ms = samples[`besideSaves${lanes}Ms`];
  return [0.5, 0.99].map((share) =>
    describe({
      name: `int8: one block beside stores, ${lanes} lane${lanes > 1 ? "s" : ""}, p${share * 100}`,
      unit: "ms",
      value: quantile(ms, share),
    }),
  );
}

/** Returns the machine's ceiling for such work, and the default lanes beside it. */
function ceilingFigures(samples, tcp, { what, codec }) {
  const direction = what === "save" ? `bareSave${codec}` : `bareRestore${codec}`;
  const { name, connections } = fastest(samples, direction);
  const label = `${codec.toLowerCase()}: ${what}, bare`;
  const [rates, lanes] = [samples[`${name}Gbps`], samples[`${what}${codec}${LANES_DEFAULT}Gbps`]];
  const beside = samples[`${tcp[what].name}Gbps`];
  return [
    figure(`${label}, ${connections} connections`, "GB/s", rates, { beside, of: "plain TCP" }),
    figure(`${label}, processor time`, "s/GB", samples[`${name}CpuSPerGb`]),
    figure(`${label}: ${LANES_DEFAULT} lanes beside it`, "GB/s", lanes, {
      beside: rates,
      of: "bare",
    }),
  ];
}

/** Returns the number of connections with the best median. */
function fastest(samples, direction) {
  const rate = (connections) => median(samples[`${direction}${connections}Gbps`]);
  const connections = CONNECTIONS.reduce((best, next) => (rate(next) > rate(best) ? next : best));
  return { name: `${direction}${connections}`, connections };
}
