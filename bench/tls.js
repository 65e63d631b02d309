// Owns the cost of encryption: restores and saves under TLS, and of sealed records, beside plaintext.
import { runExample } from "./lib/cargo.js";
import { figure } from "./lib/figures.js";
import { Network } from "./lib/network.js";

const LINK_MBIT = 5000;
const LINK = `${LINK_MBIT / 1000} Gb/s`;
const LOOPBACK_FLOOR = { on: "ratio", least: 0.5 };
const LINK_FLOOR = { on: "ratio", least: 0.85 };
/** Bound relative to a restore's CPU time. */
const CHECKSUM_FLOOR = { on: "ratio", most: 0.03 };

export const title = "TLS under the lanes, and sealed records, beside both in clear";

export async function run({ isQuick, say }) {
  const size = isQuick ? ["--quick"] : [];
  say("loopback, clear, TLS and sealed in turns");
  const [near] = await runExample("bench_lanes", ["--tls", ...size]);
  say(`a link of ${LINK}, clear, TLS and sealed in turns`);
  const far = await overLink(size);
  const figures = [
    ...figuresOf(near, "loopback", LOOPBACK_FLOOR),
    checksumFigure(near),
    ...figuresOf(far, LINK, LINK_FLOOR),
  ];
  const { blocks, pageBytes, lanes, rounds } = near;
  const notes = [
    `${blocks} blocks of ${(pageBytes / 2 ** 20).toFixed(2)} MiB, ${lanes} lanes, TLS 1.3 with AES-256-GCM, medians of ${rounds} rounds; each ratio is to the same in clear in the same round`,
    `both ends on this machine: on a loopback one processor's work is the other's wait; the link is a pair of virtual interfaces shaped by tc tbf to ${LINK} both ways`,
  ];
  return { figures, notes };
}

async function overLink(size) {
  const network = new Network();
  try {
    network.pace(LINK_MBIT);
    const { netns, host } = network;
    const [report] = await runExample("bench_lanes", ["--tls", "--netns", netns, host, ...size]);
    return report;
  } finally {
    network.close();
  }
}

/** Compares checksums, which are always on, with the CPU time of a restore. */
function checksumFigure({ samples }) {
  const beside = samples.restoreInt8ClearCpuSPerGb;
  return figure("checksum of what travels, processor time", "s/GB", samples.checksumSPerGb, {
    beside,
    of: "int8 restore in clear",
    floor: CHECKSUM_FLOOR,
  });
}

function figuresOf({ samples }, place, floor) {
  const figures = [];
  for (const codec of ["Int8", "Raw"]) {
    for (const what of ["restore", "save"]) {
      const name = `${what}${codec}`;
      const label = `${place}, ${codec.toLowerCase()}: ${what}`;
      const beside = samples[`${name}ClearGbps`];
      figures.push(
        figure(`${label} in clear`, "GB/s", beside),
        figure(`${label} under TLS`, "GB/s", samples[`${name}TlsGbps`], {
          beside,
          of: "in clear",
          floor,
        }),
        figure(`${label}, sealed`, "GB/s", samples[`${name}SealedGbps`], {
          beside,
          of: "in clear",
          floor,
        }),
        figure(`${label} in clear, processor time`, "s/GB", samples[`${name}ClearCpuSPerGb`]),
        figure(`${label} under TLS, processor time`, "s/GB", samples[`${name}TlsCpuSPerGb`]),
        figure(`${label}, sealed, processor time`, "s/GB", samples[`${name}SealedCpuSPerGb`]),
      );
    }
  }
  return figures;
}
