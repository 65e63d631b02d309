// Owns the figures of the codecs: encode and decode on one core beside memcpy, with INT8's floors, and fidelity.
import { runExample } from "./lib/cargo.js";
import { describe } from "./lib/figures.js";

const MIB = 2 ** 20;
/** Floors by codec and instruction set; other codecs have none. */
const ENCODE_LEAST = {
  int8: { avx2: 0.45, avx512: 0.45, avx512bf16: 0.45 },
  "int8-mean-had": { avx2: 0.33, avx512: 0.55, avx512bf16: 0.55 },
};
const DECODE_LEAST = {
  int8: { avx2: 0.55, avx512: 0.75, avx512bf16: 0.9 },
  "int8-mean-had": { avx2: 0.48, avx512: 0.8, avx512bf16: 0.8 },
};

export const title = "codecs on one core: strided page to payload and back in one pass";

/** INT8 keeps bare names, because saved figures have them. */
const label = ({ codec, case: name }) => (codec === "int8" ? name : `${codec}, ${name}`);

export async function run() {
  const [report] = await runExample("bench_codec");
  const { isa, cases, snrDb, snrTurnedDb, bf16OverInt8, bf16OverTurned, bf16OverLossless } = report;
  const { rounds, setBytes } = report;
  const speed = (given, least) =>
    describe({
      ...given,
      unit: "GB/s",
      of: "memcpy",
      ...(least === undefined ? {} : { floor: { on: "ratio", least } }),
    });
  const speeds = cases.flatMap((each) => [
    speed(
      { name: `${label(each)}: encode`, value: each.encodeGbps, ratio: each.encodeOverMemcpy },
      ENCODE_LEAST[each.codec]?.[isa],
    ),
    speed(
      { name: `${label(each)}: decode`, value: each.decodeGbps, ratio: each.decodeOverMemcpy },
      DECODE_LEAST[each.codec]?.[isa],
    ),
    describe({ name: `${label(each)}: memcpy`, unit: "GB/s", value: each.memcpyGbps }),
  ]);
  const fidelity = [
    ...Object.entries(snrDb).map(([spread, value]) => [`true SNR, ${spread}`, value]),
    ...Object.entries(snrTurnedDb).map(([spread, value]) => [
      `int8-mean-had: true SNR, ${spread}`,
      value,
    ]),
  ].map(([name, value]) => describe({ name, unit: "dB", value }));
  const size = [
    describe({ name: "bytes of bf16 over bytes of INT8", unit: "", value: bf16OverInt8 }),
    describe({
      name: "bytes of bf16 over bytes of int8-mean-had",
      unit: "",
      value: bf16OverTurned,
    }),
    describe({ name: "bytes of bf16 over bytes of lossless", unit: "", value: bf16OverLossless }),
  ];
  const notes = [
    `instruction set: ${isa}`,
    `${setBytes / MIB} MiB of pages a round, medians of ${rounds} rounds in turns with memcpy of the same bytes; encode counts the source's bytes and includes the checksum, decode the output's`,
    "SNR is signal over error power against the bf16 source, at head dim 128",
  ];
  return { figures: [...speeds, ...fidelity, ...size], notes, isa };
}
