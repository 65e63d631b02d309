// Owns the figures of a vault of this machine and user: records read where they stand, beside the same vault over its socket.
import { runExample } from "./lib/cargo.js";
import { figure } from "./lib/figures.js";

const MIB = 2 ** 20;
/** Floors over the socket; processor time has a ceiling. */
const LEAST = { restoreRaw: 3, restoreInt8: 2, saveRaw: 2, saveInt8: 2 };
const PROCESSOR_MOST = 0.45;
const MEMCPY_LEAST = 1.2;

export const title = "A vault of this machine: memory lent, beside its socket";

export async function run({ isQuick, say }) {
  say("two processes, memory and socket in turns");
  const args = ["--own", ...(isQuick ? ["--quick"] : [])];
  const [{ samples, rounds, blocks, pageBytes }] = await runExample("bench_lanes", args);
  const figures = [];
  for (const codec of ["Raw", "Int8"]) {
    for (const what of ["restore", "save"]) figures.push(...pairOf(samples, `${what}${codec}`));
  }
  const floor = { on: "ratio", least: MEMCPY_LEAST };
  const [restored, copied] = [samples.restoreRawLentGbps, samples.memcpyGbps];
  figures.push(
    figure("memcpy, one core", "GB/s", copied),
    figure("raw: restore in memory, over a copy", "GB/s", restored, {
      beside: copied.slice(-restored.length),
      of: "memcpy",
      floor,
    }),
  );
  const notes = [
    `${blocks} blocks of ${(pageBytes / MIB).toFixed(2)} MiB (16 tokens, 36 layers, 8 heads of 128, bf16), medians of ${rounds} rounds for each codec, every line measured once in each round`,
    "rates count bytes of records; restore ends when every block is verified and decoded in the arena, save when the vault has verified the last record",
    "memory: each side reads the other's records where they stand (decision 0188); socket: the same vault and Unix socket, all bytes sent",
    "the vault is full of records of the same length, so that it has pages for new ones; processor time is of both processes, kernel included, the mean of all rounds",
    "memcpy: the same pages, one core, one call a page",
  ];
  return { figures, notes };
}

function pairOf(samples, name) {
  const [what, codec] = [name.replace(/Raw|Int8/u, ""), name.includes("Raw") ? "raw" : "int8"];
  const [lent, socket] = [`${name}Lent`, `${name}Socket`];
  // The system counts in steps of 10 ms, too long for one round.
  const [lentS, socketS] = [lent, socket].map((way) => [mean(samples[`${way}CpuSPerGb`])]);
  return [
    figure(`${codec}: ${what}, socket`, "GB/s", samples[`${socket}Gbps`]),
    figure(`${codec}: ${what}, memory`, "GB/s", samples[`${lent}Gbps`], {
      beside: samples[`${socket}Gbps`],
      of: "socket",
      floor: { on: "ratio", least: LEAST[name] },
    }),
    figure(`${codec}: ${what}, socket, processor time`, "s/GB", socketS),
    figure(`${codec}: ${what}, memory, processor time`, "s/GB", lentS, {
      beside: socketS,
      of: "socket",
      floor: { on: "ratio", most: PROCESSOR_MOST },
    }),
  ];
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
