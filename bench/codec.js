// Owns the figures of the INT8 kernels: encode and decode on one core beside memcpy, held to the floor of the instruction set, and fidelity.
import { runExample } from "./lib/cargo.js";
import { describe } from "./lib/figures.js";

const MIB = 2 ** 20;
const ENCODE_LEAST = 0.45;
/** By instruction set; other code is held to no floor. */
const DECODE_LEAST = { avx2: 0.55, avx512: 0.75, avx512bf16: 0.9 };

export const title = "INT8 codec on one core: strided page to payload and back in one pass";

export async function run() {
  const [report] = await runExample("bench_codec");
  const { isa, cases, snrDb, bf16OverInt8, rounds, setBytes } = report;
  const speed = (given, least) =>
    describe({
      ...given,
      unit: "GB/s",
      of: "memcpy",
      ...(least === undefined ? {} : { floor: { on: "ratio", least } }),
    });
  const speeds = cases.flatMap((each) => [
    speed(
      { name: `${each.case}: encode`, value: each.encodeGbps, ratio: each.encodeOverMemcpy },
      ENCODE_LEAST,
    ),
    speed(
      { name: `${each.case}: decode`, value: each.decodeGbps, ratio: each.decodeOverMemcpy },
      DECODE_LEAST[isa],
    ),
    describe({ name: `${each.case}: memcpy`, unit: "GB/s", value: each.memcpyGbps }),
  ]);
  const fidelity = Object.entries(snrDb).map(([spread, value]) =>
    describe({ name: `true SNR, ${spread}`, unit: "dB", value }),
  );
  const size = describe({
    name: "bytes of bf16 over bytes of INT8",
    unit: "",
    value: bf16OverInt8,
  });
  const notes = [
    `instruction set: ${isa}`,
    `${setBytes / MIB} MiB of pages a round, medians of ${rounds} rounds in turns with memcpy of the same bytes; encode counts the source's bytes and includes the checksum, decode the output's`,
    "SNR is signal over error power against the bf16 source, at head dim 128",
  ];
  return { figures: [...speeds, ...fidelity, size], notes, isa };
}
